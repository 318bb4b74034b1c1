-- request/attempt, lease, ticket ('': none), plans (JSON) -> workers of the first plan that fits
--
-- A plan is a list of choices {sequences, tokens, workers: [[id, incarnation], ...]}: room on
-- one worker of each, all or nothing. A ticket must be at its turn, and is used up.
local suffix, lease, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local plans = cjson.decode(ARGV[4])
sweep()

local function is_held(id, incarnation)
  local claim, worker = load(CLAIMS, id .. '/' .. suffix), load(STATES, id)
  return claim and worker and worker.since == claim.since and worker.incarnation == incarnation
end

local function has_room(id, incarnation, choice)
  local worker = load(STATES, id)
  if not worker or worker.incarnation ~= incarnation or worker.draining then return false end
  local sequences, tokens = free(worker)
  return choice.sequences <= sequences and choice.tokens <= tokens
end

local function pick(choice, test)
  for _, worker in ipairs(choice.workers) do
    if test(worker[1], worker[2], choice) then return worker[1] end
  end
end

local function pick_all(plan, test)
  local picked = {}
  for index, choice in ipairs(plan) do
    picked[index] = pick(choice, is_held) or pick(choice, test)
    if not picked[index] then return nil end
  end
  return picked
end

local function take(id, choice)
  local key = id .. '/' .. suffix
  local worker, claim = load(STATES, id), load(CLAIMS, key)
  if not (claim and claim.since == worker.since) then
    claim = {
      worker = id,
      since = worker.since,
      sequences = choice.sequences,
      tokens = choice.tokens,
    }
    call('HSET', CLAIMS, key, cmsgpack.pack(claim))
    worker.pending_sequences = worker.pending_sequences + choice.sequences
    worker.pending_tokens = worker.pending_tokens + choice.tokens
    settle(id, worker)
  end
  call('ZADD', LEASES, now + lease, key)
end

local function commit(plan, picked)
  for index, choice in ipairs(plan) do take(picked[index], choice) end
  if ticket ~= '' then drop_ticket(ticket) end
  return picked
end

for _, plan in ipairs(plans) do
  local picked = pick_all(plan, is_held)
  if picked then return commit(plan, picked) end
end
if ticket ~= '' and not call('ZSCORE', TURNS, ticket) then return {} end
for _, plan in ipairs(plans) do
  local picked = pick_all(plan, has_room)
  if picked then return commit(plan, picked) end
end
return {}
