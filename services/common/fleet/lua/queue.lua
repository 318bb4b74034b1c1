-- Tickets: where they wait, the work that waits with them, and their turns.
--
-- Work by score is kept in a tree of sums, so that what is ahead of a score is found by looking
-- at a few of them, however many tickets wait.

local WIDTH = 500000 -- of the scores that share a bucket at the lowest level
local FAN = 16 -- buckets that share one at the next level
local LEVELS = 5 -- a bucket of the last level is nine hours wide: there are few

local function bucket_of(score)
  return math.floor(math.max(0, score) / WIDTH)
end

local function add_to_bucket(hash, field, work)
  if call('HINCRBY', hash, field, work) == 0 then call('HDEL', hash, field) end
end

local function add_work(score, work)
  if work == 0 then return end
  add('queued', work)
  local bucket = bucket_of(score)
  for level = 1, LEVELS - 1 do
    add_to_bucket(WORK, level .. ':' .. bucket, work)
    bucket = math.floor(bucket / FAN)
  end
  add_to_bucket(SPANS, bucket, work)
end

-- Work of the tickets with a lower score, and of all in the same bucket.
local function work_until(score)
  local work, bucket = 0, bucket_of(score) + 1
  for level = 1, LEVELS - 1 do
    local fields = {}
    for before = bucket - bucket % FAN, bucket - 1 do
      table.insert(fields, level .. ':' .. before)
    end
    if #fields > 0 then
      for _, part in ipairs(call('HMGET', WORK, unpack(fields))) do
        work = work + tonumber(part or 0)
      end
    end
    bucket = math.floor(bucket / FAN)
  end
  local spans = call('HGETALL', SPANS)
  for index = 1, #spans, 2 do
    if tonumber(spans[index]) < bucket then work = work + tonumber(spans[index + 1]) end
  end
  return work
end

local function put_in_queue(id, ticket)
  call('ZADD', QUEUE, ticket.score, id)
  add_work(ticket.score, ticket.work)
end

local function add_turn(ticket, sign)
  for role, need in pairs(ticket.needs) do
    add('turns:' .. role, sign)
    add('given:' .. role, sign * need[2])
  end
end

-- Takes a ticket from where it is, out of the queue or from its turn.
local function take_out(id, ticket)
  if call('ZREM', QUEUE, id) == 1 then
    add_work(ticket.score, -ticket.work)
  elseif call('ZREM', TURNS, id) == 1 then
    add_turn(ticket, -1)
  end
end

local function save_ticket(id, ticket)
  call('HSET', TICKETS, id, cmsgpack.pack(ticket))
end

local function drop_ticket(id)
  local ticket = load(TICKETS, id)
  if not ticket then return end
  take_out(id, ticket)
  call('HDEL', TICKETS, id)
  call('ZREM', OWNED, ticket.router .. '\0' .. id)
end

-- A turn that nobody used: the ticket waits again, where it was.
local function return_turn(id)
  local ticket = load(TICKETS, id)
  take_out(id, ticket)
  put_in_queue(id, ticket)
end

-- Registers the router or renews it. Returns when it was registered.
local function touch_router(id, life)
  call('ZADD', ROUTERS, now + life, id)
  local since = tonumber(call('HGET', SINCE, id))
  if since then return since end
  call('HSET', SINCE, id, string.format('%.0f', now))
  return now
end

-- A router that fell silent: its registration ends, and its tickets leave, some at a time.
local function forget_router(id)
  call('HDEL', SINCE, id)
  local from, to = '[' .. id .. '\0', '(' .. id .. '\1'
  local names = call('ZRANGEBYLEX', OWNED, from, to, 'LIMIT', 0, BATCH)
  for _, name in ipairs(names) do drop_ticket(string.sub(name, #id + 2)) end
  if #names < BATCH then call('ZREM', ROUTERS, id) end
end

local function sweep()
  if not settled then return end
  for _, id in ipairs(expired(BEATS)) do forget(id) end
  for _, key in ipairs(expired(LEASES)) do drop_claim(key) end
  for _, id in ipairs(expired(TURNS)) do return_turn(id) end
  local silent = expired(ROUTERS)[1]
  if silent then forget_router(silent) end
end

local function fits(role, need)
  local tokens, work = need[1], need[2]
  local best = call('ZREVRANGE', work > 0 and WANTS[role] or ROOMS[role], 0, 0, 'WITHSCORES')
  if not best[2] or tonumber(best[2]) < tokens then return false end
  if sum('slots:' .. role) <= sum('turns:' .. role) then return false end
  return work == 0 or sum('prompts:' .. role) > sum('given:' .. role)
end

local function has_room(ticket)
  for role, need in pairs(ticket.needs) do
    if not fits(role, need) then return false end
  end
  return true
end

-- A target that is lost already: the ticket goes behind those whose target can be held.
local function demote(id, ticket)
  take_out(id, ticket)
  ticket.score, ticket.late = now + ticket.demotion, nil
  save_ticket(id, ticket)
  put_in_queue(id, ticket)
end

local function give_turn(id, ticket)
  take_out(id, ticket)
  call('ZADD', TURNS, now + TURN, id)
  add_turn(ticket, 1)
end

local function tell(router, id)
  local stream = STREAMS .. ':' .. router
  call('XADD', stream, 'MAXLEN', STREAM_LENGTH, '*', 'ticket', id)
  call('PEXPIRE', stream, STREAM_LIFE_MS)
end

-- Gives turns in the order of the queue while the fleet has room for the next; nobody overtakes
-- a ticket that needs more. Tells each ticket's router, except for `own`: its caller sees it.
local function grant(own)
  for _ = 1, BATCH do
    local id = call('ZRANGE', QUEUE, 0, 0)[1]
    if not id then return end
    local ticket = load(TICKETS, id)
    if call('HEXISTS', SINCE, ticket.router) == 0 then
      drop_ticket(id)
    elseif ticket.late and ticket.late < now then
      demote(id, ticket)
    elseif has_room(ticket) then
      give_turn(id, ticket)
      if id ~= own then tell(ticket.router, id) end
    else
      return
    end
  end
end
