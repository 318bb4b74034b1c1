-- tenant, request, interval between requests (0: any), burst, streams (0: any), life of a stream
-- -> {'in' | 'rate' | 'streams', time until there may be room (rate), streams now, routers}
--
-- A request that is in already is not counted again. One that is refused counts nowhere.
local tenant, request = ARGV[1], ARGV[2]
local interval, burst, most, life =
  tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local pace, streams = LIMITS .. ':pace:' .. tenant, LIMITS .. ':streams:' .. tenant
local routers = call('ZCARD', ROUTERS)

local running = 0
if most > 0 then
  if settled then call('ZREMRANGEBYSCORE', streams, '-inf', now) end
  running = call('ZCARD', streams)
  if call('ZSCORE', streams, request) then return { 'in', 0, running, routers } end
  if running >= most then return { 'streams', 0, running, routers } end
end

if interval > 0 and call('HGET', pace, 'last') ~= request then
  local due = math.max(now, tonumber(call('HGET', pace, 'due')) or 0) + interval
  local early = due - now - burst * interval
  if early > 0 then return { 'rate', math.ceil(early), running, routers } end
  call('HSET', pace, 'due', string.format('%.0f', due), 'last', request)
  call('PEXPIRE', pace, math.ceil((due - now) / 1000) + 1000)
end

if most > 0 then
  call('ZADD', streams, now + life, request)
  call('PEXPIRE', streams, STREAM_LIFE_MS)
  running = running + 1
end
return { 'in', 0, running, routers }
