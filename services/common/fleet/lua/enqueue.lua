-- ticket, router, router's life, slack, prefill tokens, decode tokens (-1: none), limit (-1: none)
-- -> {state, registration of the router}. A ticket keeps its score; one at its turn gives the turn back.
local id, router = ARGV[1], ARGV[2]
local limit = tonumber(ARGV[7])
local since = touch_router(router, tonumber(ARGV[3]))
sweep()
local old = load(TICKETS, id)
if not old and limit >= 0 and call('ZCARD', QUEUE) >= limit then
  return { 'full', since }
end
local ticket = {
  router = router,
  score = old and old.score or now + tonumber(ARGV[4]),
  prefill = tonumber(ARGV[5]),
  decode = tonumber(ARGV[6]),
}
call('HSET', TICKETS, id, cmsgpack.pack(ticket))
return_turn(id)
grant(id)
return { call('ZSCORE', TURNS, id) and 'turn' or 'waiting', since }
