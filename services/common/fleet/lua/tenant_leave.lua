-- tenant, request, tenant, request... : they ended
for index = 1, #ARGV, 2 do
  call('ZREM', LIMITS .. ':streams:' .. ARGV[index], ARGV[index + 1])
end
return 1
