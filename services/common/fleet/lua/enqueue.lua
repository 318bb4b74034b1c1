-- ticket, router, router's life, what the ticket asks (JSON) -> {state, registration of the
-- router, work ahead, tickets ahead}
--
-- Asked is {due, clock, clock_rate, floor, floor_rate, late, demotion, needs: role -> {tokens,
-- work}, limit, allowed_work, allowed_tickets, earn}; late, limit and what is allowed may be
-- absent. A ticket keeps its score, and one at its turn gives the turn back.
local id, router = ARGV[1], ARGV[2]
local asked = cjson.decode(ARGV[4])
local since = touch_router(router, tonumber(ARGV[3]))
sweep()

local function shown(clock)
  return math.max(now, tonumber(call('ZSCORE', CLOCKS, clock)) or 0)
end

-- A tenant beyond its share comes later by so much; a minimum share comes no later than its due.
local function score_of_new()
  local score = now + asked.due
  if asked.clock ~= '' then score = score + shown(asked.clock) - now end
  if asked.floor ~= '' then score = math.min(score, shown(asked.floor)) end
  return math.floor(score)
end

local function advance(clock, work)
  if clock ~= '' and work > 0 then
    call('ZADD', CLOCKS, math.floor(shown(clock) + work), clock)
    call('ZREMRANGEBYSCORE', CLOCKS, '-inf', now)
  end
end

-- What a request adds to the fleet's retries, once some of them are spent.
local function earn(part)
  if part > 0 and call('EXISTS', BUDGET) == 1 then call('INCRBY', BUDGET, part) end
end

local function refused(work, tickets)
  if asked.limit and call('ZCARD', QUEUE) >= asked.limit then return 'full' end
  if asked.allowed_work and work > asked.allowed_work then return 'refused' end
  if asked.allowed_tickets and tickets > asked.allowed_tickets then return 'refused' end
end

local old = load(TICKETS, id)
local ticket = old or { router = router, late = asked.late and now + asked.late }
if old then
  take_out(id, old)
else
  ticket.score = score_of_new()
  ticket.demotion = asked.demotion
end
local work = work_until(ticket.score)
local tickets = call('ZCOUNT', QUEUE, '-inf', ticket.score)
local refusal = not old and refused(work, tickets)
if refusal then return { refusal, since, work, tickets } end
ticket.needs, ticket.work = asked.needs, 0
for _, need in pairs(asked.needs) do ticket.work = ticket.work + need[2] end
if not old then
  advance(asked.clock, ticket.work * asked.clock_rate)
  advance(asked.floor, ticket.work * asked.floor_rate)
  earn(asked.earn)
end
save_ticket(id, ticket)
call('ZADD', OWNED, 0, ticket.router .. '\0' .. id)
put_in_queue(id, ticket)
grant(id)
return { call('ZSCORE', TURNS, id) and 'turn' or 'waiting', since, work, tickets }
