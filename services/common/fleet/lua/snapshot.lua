-- -> {now, settled, waiting, work waiting, turns, claims, {clock, what it shows, ...},
--     {worker, record, ...}, {worker, what is claimed, ...}}
sweep()
return {
  now,
  settled and 1 or 0,
  call('ZCARD', QUEUE),
  sum('queued'),
  call('ZCARD', TURNS),
  call('ZCARD', LEASES),
  call('ZRANGEBYSCORE', CLOCKS, string.format('(%.0f', now), '+inf', 'WITHSCORES'),
  call('HGETALL', RECORDS),
  call('HGETALL', PENDING),
}
