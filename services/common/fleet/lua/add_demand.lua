-- source, number of its batch, seconds to remember that for, then names of sums and what to add
--
-- A batch that was added already adds nothing: the same source's numbers ascend. What is no number
-- begins anew, so that it does not end all counting.
local last = DEMAND .. ':' .. ARGV[1]
if tonumber(ARGV[2]) <= tonumber(call('GET', last) or 0) then return 0 end
call('SET', last, ARGV[2], 'EX', ARGV[3])
for index = 4, #ARGV, 2 do
  local sum = redis.pcall('HINCRBYFLOAT', DEMAND, ARGV[index], ARGV[index + 1])
  sum = type(sum) == 'string' and tonumber(sum) or -1
  if not (sum >= 0 and sum <= 1e30) then call('HSET', DEMAND, ARGV[index], ARGV[index + 1]) end
end
return 1
