-- name -> the value that was kept last, or nil
return call('HGET', KEPT, ARGV[1])
