-- -> {now, settled, waiting, turns, claims, {record, pending sequences, pending tokens}...}
sweep()
local answer = {
  now,
  settled and 1 or 0,
  call('ZCARD', QUEUE),
  call('ZCARD', TURNS),
  call('ZCARD', LEASES),
}
for _, id in ipairs(call('HKEYS', RECORDS)) do
  local worker = load(STATES, id)
  table.insert(answer, {
    call('HGET', RECORDS, id),
    worker.pending_sequences,
    worker.pending_tokens,
  })
end
return answer
