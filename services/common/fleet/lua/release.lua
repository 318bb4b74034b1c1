-- claims...
for _, key in ipairs(ARGV) do drop_claim(key) end
sweep()
grant()
return 1
