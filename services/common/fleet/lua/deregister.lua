-- worker, incarnation
local worker = load(STATES, ARGV[1])
if worker and worker.incarnation == ARGV[2] then forget(ARGV[1]) end
sweep()
grant()
return 1
