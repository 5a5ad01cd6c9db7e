-- Takes down what a node has spent of accounts, and grants what it may spend: spent and granted is together never more than the
-- caps. All amounts of a node are sums since it began, so that what comes twice or late changes nothing. The same as
-- `AccountTable` in steadfast-core.
-- KEYS: of each account, its sums, and its nodes. ARGV: the node, for how long what a silent one has is kept for it, for how long an
-- account is kept, both in milliseconds, then 26 numbers of each account: six caps (tokens and cost of hour, day and month), which
-- life of the account it is, the number of the draw, spent, granted, needed, wanted (tokens and cost each), since when the
-- account is known, six sums that are known, what was reported (tokens and cost), and whether to begin anew.
local NUMBERS = 26
local WINDOWS = {{'h', 60, 60}, {'d', 900, 96}, {'m', 21600, 120}}
local HUGE = 9007199254740991
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local unix = tonumber(time[1])
local node, silent_ms, account_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local function text(number)
  return string.format('%.0f', number)
end

-- What is kept of a node: the number of its last draw, spent, granted, and when that was.
local function line(row)
  local values = {}
  for i, value in ipairs(row) do
    values[i] = text(value)
  end
  return table.concat(values, ' ')
end

-- The sums of an account, with what is too old forgotten. Buckets are fields of their own, by their number since 1970.
local function read(key)
  local fields = {'since'}
  for _, window in ipairs(WINDOWS) do
    for _, part in ipairs({'t', 'c', 'first', 'last'}) do
      fields[#fields + 1] = window[1] .. part
    end
  end
  local stored = redis.call('HMGET', key, unpack(fields))
  local account = {key = key, since = tonumber(stored[1] or '0'), changed = {}}
  for i, window in ipairs(WINDOWS) do
    local at = (i - 1) * 4 + 1
    local number = math.floor(unix / window[2])
    local sum = {
      name = window[1], width = window[2], count = window[3], now = number,
      t = tonumber(stored[at + 1] or '0'), c = tonumber(stored[at + 2] or '0'),
      first = tonumber(stored[at + 3] or '0'), last = tonumber(stored[at + 4] or '0'),
    }
    if sum.last == 0 then
      sum.first, sum.last = number, number
    end
    local old = {}
    while sum.first <= sum.last and sum.first + sum.count < number do
      old[#old + 1] = window[1] .. text(sum.first)
      sum.first = sum.first + 1
    end
    if #old > 0 then
      for _, bucket in ipairs(redis.call('HMGET', key, unpack(old))) do
        local t, c = string.match(bucket or '', '^(%d+) (%d+)$')
        sum.t, sum.c = math.max(0, sum.t - (t or 0)), math.max(0, sum.c - (c or 0))
      end
      redis.call('HDEL', key, unpack(old))
    end
    sum.last = math.max(sum.last, number)
    sum.first = math.min(sum.first, sum.last)
    account[i] = sum
  end
  return account
end

local function add(account, i, t, c)
  if t <= 0 and c <= 0 then
    return
  end
  local sum = account[i]
  local field = sum.name .. text(sum.last)
  local bucket = account.changed[field] or redis.call('HGET', account.key, field) or '0 0'
  local known_t, known_c = string.match(bucket, '^(%d+) (%d+)$')
  account.changed[field] = text(known_t + math.max(0, t)) .. ' ' .. text(known_c + math.max(0, c))
  sum.t, sum.c = sum.t + math.max(0, t), sum.c + math.max(0, c)
end

local function write(account)
  local fields = {'since', text(account.since)}
  for i = 1, 3 do
    local sum = account[i]
    for part, value in pairs({t = sum.t, c = sum.c, first = sum.first, last = sum.last}) do
      fields[#fields + 1] = sum.name .. part
      fields[#fields + 1] = text(value)
    end
  end
  for field, bucket in pairs(account.changed) do
    fields[#fields + 1] = field
    fields[#fields + 1] = bucket
  end
  redis.call('HSET', account.key, unpack(fields))
  redis.call('PEXPIRE', account.key, account_ms)
end

-- When so much of a unit has been forgotten, in seconds from now; -1 where there is less.
local function frees(account, i, unit, missing)
  local sum, names = account[i], {}
  for at = sum.first, sum.last do
    names[#names + 1] = sum.name .. text(at)
  end
  local stored, freed = redis.call('HMGET', account.key, unpack(names)), 0
  for at, name in ipairs(names) do
    local t, c = string.match(account.changed[name] or stored[at] or '', '^(%d+) (%d+)$')
    freed = freed + ((unit == 't' and t or c) or 0)
    if freed >= missing then
      return math.max(0, (sum.first + at - 1 + sum.count + 1) * sum.width - unix)
    end
  end
  return -1
end

local answers = {}
for i = 1, #KEYS, 2 do
  local at = 3 + (i - 1) / 2 * NUMBERS
  local function arg(number)
    return tonumber(ARGV[at + number])
  end
  local caps = {{t = arg(1), c = arg(2)}, {t = arg(3), c = arg(4)}, {t = arg(5), c = arg(6)}}
  local name, number = node .. ' ' .. ARGV[at + 7], arg(8)
  local spent, granted = {t = arg(9), c = arg(10)}, {t = arg(11), c = arg(12)}
  local needed, wanted = {t = arg(13), c = arg(14)}, {t = arg(15), c = arg(16)}
  local known_since, reported = arg(17), {t = arg(24), c = arg(25)}

  local account = read(KEYS[i])
  if account.since == 0 then
    account.since = now
  end
  if known_since ~= account.since then
    for window = 1, 3 do
      local t, c = arg(16 + 2 * window), arg(17 + 2 * window)
      add(account, window, t - account[window].t, c - account[window].c)
    end
  end

  -- What nodes have that are silent for too long counts as spent.
  local rows, nodes, own = redis.call('HGETALL', KEYS[i + 1]), 0, nil
  local held = {t = 0, c = 0}
  for j = 1, #rows, 2 do
    local row = {}
    for value in string.gmatch(rows[j + 1], '%d+') do
      row[#row + 1] = tonumber(value)
    end
    local open_t, open_c = math.max(0, row[4] - row[2]), math.max(0, row[5] - row[3])
    if now - row[6] >= silent_ms then
      for window = 1, 3 do
        add(account, window, open_t, open_c)
      end
      redis.call('HDEL', KEYS[i + 1], rows[j])
    elseif rows[j] == name then
      own = row
    else
      nodes = nodes + 1
      held.t, held.c = held.t + open_t, held.c + open_c
    end
  end
  own = own or {0, reported.t, reported.c, reported.t, reported.c, now}
  nodes = nodes + 1

  local short = {0, 0, 0, 0, -1}
  if number > own[1] then
    if arg(26) == 1 then
      for window = 1, 3 do
        local sum = account[window]
        for bucket = sum.first, sum.last do
          account.changed[sum.name .. text(bucket)] = '0 0'
        end
        sum.t, sum.c = 0, 0
      end
    end
    for window = 1, 3 do
      add(account, window, spent.t - own[2], spent.c - own[3])
    end
    local counted = {t = math.max(own[2], spent.t), c = math.max(own[3], spent.c)}
    granted.t, granted.c = math.max(granted.t, spent.t), math.max(granted.c, spent.c)
    -- Others give back soon what they do not use.
    local elsewhere = {t = held.t, c = held.c}
    held.t = held.t + math.max(0, granted.t - counted.t)
    held.c = held.c + math.max(0, granted.c - counted.c)

    local more = {}
    for _, unit in ipairs({'t', 'c'}) do
      local need = math.max(0, needed[unit] - granted[unit])
      local want = math.max(need, wanted[unit] - granted[unit])
      local free = HUGE
      for window = 1, 3 do
        local cap = caps[window][unit]
        if cap > 0 then
          free = math.min(free, math.max(0, cap - account[window][unit] - held[unit]))
        end
      end
      -- Enough for this node, and as much for the others; near the cap no more than what is needed.
      more[unit] = math.min(want, math.max(math.floor(free / (2 * nodes)), math.min(need, free)))
      if more[unit] < need then
        for window = 1, 3 do
          local cap = caps[window][unit]
          local missing = account[window][unit] + held[unit] + need - cap
          if cap > 0 and missing > 0 then
            local wait = missing > elsewhere[unit] and frees(account, window, unit, missing) or -1
            if short[1] == 0 or wait >= short[5] then
              short = {1, window - 1, unit == 'c' and 1 or 0, missing, wait}
            end
          end
        end
      end
    end
    granted.t, granted.c = granted.t + more.t, granted.c + more.c
    held.t, held.c = held.t + more.t, held.c + more.c
    local row = {number, counted.t, counted.c, granted.t, granted.c, now}
    redis.call('HSET', KEYS[i + 1], name, line(row))
  else
    granted = {t = own[4], c = own[5]}
    held.t, held.c = held.t + math.max(0, own[4] - own[2]), held.c + math.max(0, own[5] - own[3])
  end
  write(account)
  redis.call('PEXPIRE', KEYS[i + 1], account_ms)

  local answer = {granted.t, granted.c, account.since}
  for window = 1, 3 do
    answer[#answer + 1] = account[window].t
    answer[#answer + 1] = account[window].c
  end
  answer[#answer + 1] = held.t
  answer[#answer + 1] = held.c
  for _, value in ipairs(short) do
    answer[#answer + 1] = value
  end
  answers[#answers + 1] = answer
end
return answers
