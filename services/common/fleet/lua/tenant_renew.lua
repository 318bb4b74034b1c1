-- life of a stream, then tenant, request, tenant, request... : they run still
local life = tonumber(ARGV[1])
for index = 2, #ARGV, 2 do
  local streams = LIMITS .. ':streams:' .. ARGV[index]
  call('ZADD', streams, now + life, ARGV[index + 1])
  call('PEXPIRE', streams, STREAM_LIFE_MS)
end
return 1
