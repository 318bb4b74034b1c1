-- -> what is wrong: the sums against what they are sums of. Looks at everything.
local problems = {}
local function expect(what, is, should)
  if tonumber(is) ~= tonumber(should) then
    table.insert(problems, what .. ' is ' .. tostring(is) .. ', not ' .. tostring(should))
  end
end

local function each(hash, visit)
  local flat = call('HGETALL', hash)
  for index = 1, #flat, 2 do visit(flat[index], flat[index + 1]) end
end

local pending, claims = {}, 0
each(CLAIMS, function(key, packed)
  local claim = cmsgpack.unpack(packed)
  local worker = load(STATES, claim.worker)
  claims = claims + 1
  expect('lease of ' .. key, call('ZSCORE', LEASES, key) and 1 or 0, 1)
  if worker and worker.since == claim.since then
    local sum = pending[claim.worker] or { 0, 0 }
    pending[claim.worker] = { sum[1] + claim.sequences, sum[2] + claim.tokens }
  end
end)
expect('number of leases', call('ZCARD', LEASES), claims)

local slots, rooms = { prefill = 0, decode = 0 }, { prefill = 0, decode = 0 }
each(STATES, function(id, packed)
  local worker = cmsgpack.unpack(packed)
  local sum = pending[id] or { 0, 0 }
  local sequences, tokens = free(worker)
  local open = not worker.draining and sequences > 0 and tokens > 0
  expect(id .. ' pending sequences', worker.pending_sequences, sum[1])
  expect(id .. ' pending tokens', worker.pending_tokens, sum[2])
  expect(id .. ' room', call('ZSCORE', ROOMS[worker.role], id) or -1, open and tokens or -1)
  expect(id .. ' record', call('HEXISTS', RECORDS, id), 1)
  expect(id .. ' beat', call('ZSCORE', BEATS, id) and 1 or 0, 1)
  if open then
    slots[worker.role] = slots[worker.role] + sequences
    rooms[worker.role] = rooms[worker.role] + 1
  end
end)
for role, room in pairs(ROOMS) do
  expect(role .. ' slots', call('HGET', SLOTS, role) or 0, slots[role])
  expect(role .. ' rooms', call('ZCARD', room), rooms[role])
end
expect('number of records', call('HLEN', RECORDS), call('HLEN', STATES))

expect('number of tickets', call('HLEN', TICKETS), call('ZCARD', QUEUE) + call('ZCARD', TURNS))
each(TICKETS, function(id)
  local places = (call('ZSCORE', QUEUE, id) and 1 or 0) + (call('ZSCORE', TURNS, id) and 1 or 0)
  expect('places of ' .. id, places, 1)
end)
return problems
