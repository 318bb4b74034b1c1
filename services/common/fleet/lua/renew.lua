-- lease, claims... Only those that are still there.
for index = 2, #ARGV do call('ZADD', LEASES, 'XX', now + tonumber(ARGV[1]), ARGV[index]) end
sweep()
return 1
