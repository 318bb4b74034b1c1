-- request/attempt, lease, ticket ('': none), plans (JSON) -> {number of the first plan that fits,
-- its workers...}, or {}
--
-- A plan is a list of choices {sequences, tokens, workers: [[id, incarnation, limit, prompt
-- work, work saved], ...]}: room on one worker of each, all or nothing. A worker is not taken
-- beyond `limit` sequences, nor for prompt work where it has enough ahead, or so much more as its
-- cache saves. A ticket must be at its turn, and is used up.
local suffix, lease, ticket = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local plans = cjson.decode(ARGV[4])
sweep()

local function is_held(id, incarnation)
  local claim = load(CLAIMS, id .. '/' .. suffix)
  local worker = claim and load(STATES, id)
  return worker and worker.since == claim.since and worker.incarnation == incarnation
end

local function can_take(id, incarnation, choice, limit, prompt, saved)
  local worker = load(STATES, id)
  if not worker or worker.incarnation ~= incarnation or worker.draining then return false end
  local sequences, tokens = free(worker)
  return choice.sequences <= sequences
    and choice.tokens <= tokens
    and worker.running_sequences + worker.pending_sequences < limit
    and (prompt == 0 or worker.backlog + worker.pending_prompt < worker.lookahead + saved)
end

local function pick(choice, test)
  for _, worker in ipairs(choice.workers) do
    local id, incarnation, limit, prompt, saved = unpack(worker)
    if test(id, incarnation, choice, limit, prompt, saved) then return worker end
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

local function take(id, prompt, choice)
  local key = id .. '/' .. suffix
  local worker, claim = load(STATES, id), load(CLAIMS, key)
  if not (claim and claim.since == worker.since) then
    claim = {
      worker = id,
      since = worker.since,
      sequences = choice.sequences,
      tokens = choice.tokens,
      prompt = prompt,
    }
    call('HSET', CLAIMS, key, cmsgpack.pack(claim))
    worker.pending_sequences = worker.pending_sequences + choice.sequences
    worker.pending_tokens = worker.pending_tokens + choice.tokens
    worker.pending_prompt = worker.pending_prompt + prompt
    settle(id, worker)
  end
  call('ZADD', LEASES, now + lease, key)
end

local function commit(number, picked)
  local answer = { number }
  for index, choice in ipairs(plans[number]) do
    local id, prompt = picked[index][1], picked[index][4]
    take(id, prompt, choice)
    table.insert(answer, id)
  end
  if ticket ~= '' then drop_ticket(ticket) end
  return answer
end

for number, plan in ipairs(plans) do
  local picked = pick_all(plan, is_held)
  if picked then return commit(number, picked) end
end
if ticket ~= '' and not call('ZSCORE', TURNS, ticket) then return {} end
for number, plan in ipairs(plans) do
  local picked = pick_all(plan, can_take)
  if picked then return commit(number, picked) end
end
return {}
