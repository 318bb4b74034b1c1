-- tickets...
for _, id in ipairs(ARGV) do drop_ticket(id) end
sweep()
grant()
return 1
