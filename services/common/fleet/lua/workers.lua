-- Workers' room, and claims on it.

local function free(worker)
  return worker.sequences - worker.running_sequences - worker.pending_sequences,
    worker.tokens - worker.running_tokens - worker.pending_tokens
end

-- Prompt work that it would take now, before it has enough ahead.
local function wanted(worker)
  return math.max(0, worker.lookahead - worker.backlog - worker.pending_prompt)
end

local function place(set, id, tokens, belongs)
  if belongs then
    call('ZADD', set, tokens, id)
  else
    call('ZREM', set, id)
  end
end

-- What the worker adds to the fleet's room: {sequences, prompt work, free tokens}.
local function room(worker)
  local sequences, tokens = free(worker)
  if worker.draining or sequences <= 0 or tokens <= 0 then return 0, 0, tokens end
  return sequences, wanted(worker), tokens
end

local function tell_pending(id, worker)
  local sequences, tokens, prompt =
    worker.pending_sequences, worker.pending_tokens, worker.pending_prompt
  if sequences > 0 or tokens > 0 or prompt > 0 then
    call('HSET', PENDING, id, string.format('%.0f %.0f %.0f', sequences, tokens, prompt))
  else
    call('HDEL', PENDING, id)
  end
end

-- Stores the worker, and brings what it adds to the fleet's room up to date.
local function settle(id, worker)
  local slots, prompts, tokens = room(worker)
  add('slots:' .. worker.role, slots - worker.slots)
  add('prompts:' .. worker.role, prompts - worker.prompts)
  worker.slots, worker.prompts = slots, prompts
  place(ROOMS[worker.role], id, tokens, slots > 0)
  place(WANTS[worker.role], id, tokens, prompts > 0)
  call('HSET', STATES, id, cmsgpack.pack(worker))
  tell_pending(id, worker)
end

local function forget(id)
  local worker = load(STATES, id)
  if worker then
    add('slots:' .. worker.role, -worker.slots)
    add('prompts:' .. worker.role, -worker.prompts)
    call('ZREM', ROOMS[worker.role], id)
    call('ZREM', WANTS[worker.role], id)
  end
  call('HDEL', STATES, id)
  call('HDEL', RECORDS, id)
  call('HDEL', PENDING, id)
  call('ZREM', BEATS, id)
end

-- Removes a claim; `reported` is its worker's state where the caller will settle it.
local function drop_claim(key, reported)
  local claim = load(CLAIMS, key)
  call('HDEL', CLAIMS, key)
  call('ZREM', LEASES, key)
  if not claim then return end
  local worker = reported or load(STATES, claim.worker)
  if worker and worker.since == claim.since then
    worker.pending_sequences = worker.pending_sequences - claim.sequences
    worker.pending_tokens = worker.pending_tokens - claim.tokens
    worker.pending_prompt = worker.pending_prompt - claim.prompt
    if not reported then settle(claim.worker, worker) end
  end
end
