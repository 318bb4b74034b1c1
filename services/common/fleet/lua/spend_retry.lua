-- retries that the fleet may have left at most, in millionths -> whether one was left
--
-- Running twice spends two: fewer retries, which is no harm.
local ONE = 1000000
local most = tonumber(ARGV[1])
local left = math.min(most, tonumber(call('GET', BUDGET) or most))
if left < ONE then return 0 end
call('SET', BUDGET, left - ONE)
return 1
