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

local sums = { queued = 0 }
for role in pairs(ROOMS) do
  for _, name in ipairs({ 'slots:', 'prompts:', 'turns:', 'given:' }) do sums[name .. role] = 0 end
end
local function count(name, change) sums[name] = sums[name] + change end

local function audit_claims()
  local pending, claims = {}, 0
  each(CLAIMS, function(key, packed)
    local claim = cmsgpack.unpack(packed)
    local worker = load(STATES, claim.worker)
    claims = claims + 1
    expect('lease of ' .. key, call('ZSCORE', LEASES, key) and 1 or 0, 1)
    if worker and worker.since == claim.since then
      local of = pending[claim.worker] or { 0, 0, 0 }
      pending[claim.worker] =
        { of[1] + claim.sequences, of[2] + claim.tokens, of[3] + claim.prompt }
    end
  end)
  expect('number of leases', call('ZCARD', LEASES), claims)
  return pending
end

local function audit_workers(pending)
  local rooms, wants = { prefill = 0, decode = 0 }, { prefill = 0, decode = 0 }
  each(STATES, function(id, packed)
    local worker = cmsgpack.unpack(packed)
    local of, role = pending[id] or { 0, 0, 0 }, worker.role
    local slots, prompts, tokens = room(worker)
    expect(id .. ' pending sequences', worker.pending_sequences, of[1])
    expect(id .. ' pending tokens', worker.pending_tokens, of[2])
    expect(id .. ' pending prompt work', worker.pending_prompt, of[3])
    local told = string.gmatch(call('HGET', PENDING, id) or '0 0 0', '%d+')
    for part = 1, 3 do expect(id .. ' told part ' .. part, told(), of[part]) end
    expect(id .. ' room', call('ZSCORE', ROOMS[role], id) or -1, slots > 0 and tokens or -1)
    expect(id .. ' wants', call('ZSCORE', WANTS[role], id) or -1, prompts > 0 and tokens or -1)
    expect(id .. ' record', call('HEXISTS', RECORDS, id), 1)
    expect(id .. ' beat', call('ZSCORE', BEATS, id) and 1 or 0, 1)
    count('slots:' .. role, slots)
    count('prompts:' .. role, prompts)
    if slots > 0 then rooms[role] = rooms[role] + 1 end
    if prompts > 0 then wants[role] = wants[role] + 1 end
  end)
  for role in pairs(ROOMS) do
    expect(role .. ' rooms', call('ZCARD', ROOMS[role]), rooms[role])
    expect(role .. ' wants', call('ZCARD', WANTS[role]), wants[role])
  end
  each(PENDING, function(id, told)
    expect(id .. ' told nothing', told == '0 0 0' and 1 or 0, 0)
    expect(id .. ' told', call('HEXISTS', STATES, id), 1)
  end)
  expect('number of records', call('HLEN', RECORDS), call('HLEN', STATES))
end

local function audit_work(hash, buckets)
  each(hash, function(field, work)
    expect('work in ' .. field, work, buckets[field] or 0)
    expect('kept without work: ' .. field, work == '0' and 1 or 0, 0)
    buckets[field] = nil
  end)
  for field, work in pairs(buckets) do expect('work in ' .. field, 0, work) end
end

local function count_work(score, work, buckets, spans)
  if work == 0 then return end
  local bucket = bucket_of(score)
  for level = 1, LEVELS - 1 do
    local field = level .. ':' .. bucket
    buckets[field] = (buckets[field] or 0) + work
    bucket = math.floor(bucket / FAN)
  end
  spans[tostring(bucket)] = (spans[tostring(bucket)] or 0) + work
end

local function audit_tickets()
  local buckets, spans = {}, {}
  each(TICKETS, function(id, packed)
    local ticket = cmsgpack.unpack(packed)
    local score, turn = call('ZSCORE', QUEUE, id), call('ZSCORE', TURNS, id)
    expect('places of ' .. id, (score and 1 or 0) + (turn and 1 or 0), 1)
    expect('owner of ' .. id, call('ZSCORE', OWNED, ticket.router .. '\0' .. id) or -1, 0)
    local work = 0
    for role, need in pairs(ticket.needs) do
      work = work + need[2]
      if turn then
        count('turns:' .. role, 1)
        count('given:' .. role, need[2])
      end
    end
    expect('work of ' .. id, ticket.work, work)
    if score then
      expect('score of ' .. id, score, ticket.score)
      count('queued', work)
      count_work(ticket.score, work, buckets, spans)
    end
  end)
  expect('number of tickets', call('HLEN', TICKETS), call('ZCARD', QUEUE) + call('ZCARD', TURNS))
  expect('number of owned tickets', call('ZCARD', OWNED), call('HLEN', TICKETS))
  audit_work(WORK, buckets)
  audit_work(SPANS, spans)
end

audit_workers(audit_claims())
audit_tickets()
for name, value in pairs(sums) do expect(name, sum(name), value) end
return problems
