-- router, its life -> registration of the router
local since = touch_router(ARGV[1], tonumber(ARGV[2]))
sweep()
grant()
return since
