-- Put before every script, with workers.lua and queue.lua. Times are Redis' own, and work is a
-- time; both in microseconds.
--
--   clock    hash   seen, resumed: last script, and when scripts came again after a silence;
--                   grace: how long after that nothing expires
--   records  hash   worker -> WorkerRecord bytes
--   states   hash   worker -> what the scripts know of it (msgpack)
--   pending  hash   worker with claims -> their sequences, tokens and prompt work, in decimals
--   beats    zset   worker by the time at which its silence becomes too long
--   claims   hash   claim -> {worker, since, sequences, tokens, prompt} (msgpack)
--   leases   zset   claim by expiry
--   queue    zset   waiting ticket by score
--   tickets  hash   ticket, waiting or at its turn -> {router, score, needs, work, and until it
--                   is lost once: late, demotion} (msgpack)
--   owned    zset   router NUL ticket, for all tickets, in the order of these names
--   work     hash   level:bucket of scores -> work of the tickets that wait there
--   spans    hash   bucket of the last level -> the same
--   turns    zset   ticket at its turn, by expiry of the turn
--   routers  zset   router by the time at which its silence becomes too long
--   since    hash   router -> when it was registered; its tickets from before are gone
--   streams  stream per router (streams:router): its tickets whose turn came
--   rooms    zset   per role: worker with a free sequence, by free tokens
--   wants    zset   per role: those of them that want prompts, by free tokens
--   sums     hash   queued: work of all waiting tickets; and for each role
--                   slots:, prompts:  free sequences, and wanted prompt work, of its rooms
--                   turns:, given:    tickets at their turn that need it, and their prompt work
--   clocks   zset   clock of a tenant or of a minimum share, by what it shows
--   budget   string the fleet's retries, in millionths, as they were when one was last spent and
--                   what was earned since; absent while none was spent
--   limits   per tenant that has limits, for as long as it matters:
--            limits:pace:     hash  due: when its next request comes without a burst; last: request
--            limits:streams:  zset  request in progress, by expiry
--   demand   hash   what clients have asked so far: sum -> number; and a string per source of it
--            (demand:source): its last batch
--   kept     hash   name -> what a process wants to have again after a restart
--
-- A claim counts on a worker while both tell the same `since`, the worker's registration.

local CLOCK, RECORDS, STATES, BEATS, CLAIMS, LEASES, QUEUE, TICKETS, TURNS, ROUTERS =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local ROOMS = { prefill = KEYS[11], decode = KEYS[12] }
local WANTS = { prefill = KEYS[13], decode = KEYS[14] }
local SUMS, STREAMS, SINCE, OWNED, WORK, SPANS, CLOCKS, BUDGET, PENDING, LIMITS, DEMAND, KEPT =
  KEYS[15], KEYS[16], KEYS[17], KEYS[18], KEYS[19], KEYS[20], KEYS[21], KEYS[22], KEYS[23],
  KEYS[24], KEYS[25], KEYS[26]

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

local function sum(name)
  return tonumber(call('HGET', SUMS, name)) or 0
end

local function add(name, change)
  if change ~= 0 then call('HINCRBY', SUMS, name, change) end
end

local function expired(key)
  return call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, BATCH)
end
