-- Put before every script. Times are Redis' own, in microseconds.
--
--   clock    hash   seen, resumed: last script, and when scripts came again after a silence;
--                   grace: how long after that nothing expires
--   records  hash   worker -> WorkerRecord bytes
--   states   hash   worker -> what the scripts know of it (msgpack)
--   beats    zset   worker by the time at which its silence becomes too long
--   claims   hash   claim -> {worker, since, sequences, tokens} (msgpack)
--   leases   zset   claim by expiry
--   queue    zset   waiting ticket by score
--   tickets  hash   ticket, waiting or at its turn -> {router, score, prefill, decode} (msgpack)
--   turns    zset   ticket at its turn, by expiry of the turn
--   routers  zset   router by the time at which its silence becomes too long
--   since    hash   router -> when it was registered; its tickets from before are gone
--   rooms    zset   per role: worker with a free sequence, by free tokens
--   slots    hash   role -> free sequences of all workers in its rooms
--
-- A claim counts on a worker while both tell the same `since`, the worker's registration.

local CLOCK, RECORDS, STATES, BEATS, CLAIMS, LEASES, QUEUE, TICKETS, TURNS, ROUTERS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local ROOMS = { prefill = KEYS[11], decode = KEYS[12] }
local SLOTS, STREAMS, SINCE = KEYS[13], KEYS[14], KEYS[15]

local SILENCE = 500000 -- without any script for longer, it was Redis that was silent
local LEAST_GRACE = 1000000
local TURN = 2000000
local STREAM_LIFE_MS = 60000
local STREAM_LENGTH = 256
local BATCH = 64 -- expired entries, and heads of the queue, that one script looks at

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local seen = tonumber(call('HGET', CLOCK, 'seen'))
if not seen or now - seen > SILENCE then
  call('HSET', CLOCK, 'resumed', string.format('%.0f', now))
end
call('HSET', CLOCK, 'seen', string.format('%.0f', now))
local grace = tonumber(call('HGET', CLOCK, 'grace')) or LEAST_GRACE
local settled = now - tonumber(call('HGET', CLOCK, 'resumed')) >= grace

local function load(hash, id)
  local packed = call('HGET', hash, id)
  return packed and cmsgpack.unpack(packed)
end

local function free(worker)
  return worker.sequences - worker.running_sequences - worker.pending_sequences,
    worker.tokens - worker.running_tokens - worker.pending_tokens
end

-- Stores the worker, and brings what it adds to the fleet's room up to date.
local function settle(id, worker)
  local sequences, tokens = free(worker)
  local slots = 0
  if not worker.draining and sequences > 0 and tokens > 0 then slots = sequences end
  call('HINCRBY', SLOTS, worker.role, slots - worker.slots)
  worker.slots = slots
  if slots > 0 then
    call('ZADD', ROOMS[worker.role], tokens, id)
  else
    call('ZREM', ROOMS[worker.role], id)
  end
  call('HSET', STATES, id, cmsgpack.pack(worker))
end

local function forget(id)
  local worker = load(STATES, id)
  if worker then
    call('HINCRBY', SLOTS, worker.role, -worker.slots)
    call('ZREM', ROOMS[worker.role], id)
  end
  call('HDEL', STATES, id)
  call('HDEL', RECORDS, id)
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
    if not reported then settle(claim.worker, worker) end
  end
end

local function drop_ticket(id)
  call('ZREM', QUEUE, id)
  call('ZREM', TURNS, id)
  call('HDEL', TICKETS, id)
end

-- A turn that nobody used: the ticket waits again, where it was.
local function return_turn(id)
  call('ZREM', TURNS, id)
  local ticket = load(TICKETS, id)
  if ticket then call('ZADD', QUEUE, ticket.score, id) end
end

-- Registers the router or renews it. Returns when it was registered.
local function touch_router(id, life)
  if call('ZADD', ROUTERS, now + life, id) == 1 then
    call('HSET', SINCE, id, string.format('%.0f', now))
  end
  return tonumber(call('HGET', SINCE, id))
end

local function expired(key)
  return call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, BATCH)
end

local function sweep()
  if not settled then return end
  for _, id in ipairs(expired(BEATS)) do forget(id) end
  for _, key in ipairs(expired(LEASES)) do drop_claim(key) end
  for _, id in ipairs(expired(TURNS)) do return_turn(id) end
  for _, id in ipairs(expired(ROUTERS)) do
    call('ZREM', ROUTERS, id)
    call('HDEL', SINCE, id)
  end
end

local function fits(role, tokens, turns)
  if tokens < 0 then return true end
  local slots = tonumber(call('HGET', SLOTS, role)) or 0
  local best = call('ZREVRANGE', ROOMS[role], 0, 0, 'WITHSCORES')
  return slots > turns and best[2] ~= nil and tonumber(best[2]) >= tokens
end

-- Gives turns in the order of the queue while the fleet has room for the next; nobody overtakes
-- a ticket that needs more. Tells each ticket's router, except for `own`: its caller sees it.
local function grant(own)
  for _ = 1, BATCH do
    local id = call('ZRANGE', QUEUE, 0, 0)[1]
    if not id then return end
    local ticket = load(TICKETS, id)
    if not ticket or not call('ZSCORE', ROUTERS, ticket.router) then
      drop_ticket(id)
    else
      local turns = call('ZCARD', TURNS)
      if not (fits('prefill', ticket.prefill, turns) and fits('decode', ticket.decode, turns)) then
        return
      end
      call('ZREM', QUEUE, id)
      call('ZADD', TURNS, now + TURN, id)
      if id ~= own then
        local stream = STREAMS .. ':' .. ticket.router
        call('XADD', stream, 'MAXLEN', STREAM_LENGTH, '*', 'ticket', id)
        call('PEXPIRE', stream, STREAM_LIFE_MS)
      end
    end
  end
end
