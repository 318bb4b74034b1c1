-- name, value: kept until the next of that name
return call('HSET', KEPT, ARGV[1], ARGV[2])
