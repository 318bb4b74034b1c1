-- names of sums -> the sums, nil where nothing was added
return call('HMGET', DEMAND, unpack(ARGV))
