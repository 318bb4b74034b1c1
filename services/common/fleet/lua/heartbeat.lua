-- worker, incarnation, role, period, draining (0/1), sequences and tokens that it takes in all,
-- sequences and tokens that run, prompt work that it has and wants to have, record, claims that
-- it took... -> whether the worker is new here
local id, incarnation, role, period = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local worker = load(STATES, id)
local new = not worker or worker.incarnation ~= incarnation or worker.role ~= role
if new then
  if worker then forget(id) end
  worker = {
    since = now,
    incarnation = incarnation,
    role = role,
    pending_sequences = 0,
    pending_tokens = 0,
    pending_prompt = 0,
    slots = 0,
    prompts = 0,
  }
end
worker.draining = ARGV[5] == '1'
worker.sequences, worker.tokens = tonumber(ARGV[6]), tonumber(ARGV[7])
worker.running_sequences, worker.running_tokens = tonumber(ARGV[8]), tonumber(ARGV[9])
worker.backlog, worker.lookahead = tonumber(ARGV[10]), tonumber(ARGV[11])
for index = 13, #ARGV do drop_claim(ARGV[index], worker) end
settle(id, worker)
call('HSET', RECORDS, id, ARGV[12])
call('ZADD', BEATS, now + 3 * period, id)
if 2 * period > grace then call('HSET', CLOCK, 'grace', string.format('%.0f', 2 * period)) end
sweep()
grant()
return new and 1 or 0
