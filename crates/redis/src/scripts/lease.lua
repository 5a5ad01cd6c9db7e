-- Leases parts of what is limited, in parts per million: no part is anybody else's meanwhile.
-- KEYS: of each thing, who has which part. ARGV: the node, for how many milliseconds, then what is wanted of each; 0 gives
-- back.
local WHOLE = 1000000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The part of who wants `own`, which is one of these: small wants are met, the others share the rest equally, and what nobody
-- wants is shared, too.
local function fair(wanted, own)
  local sum = 0
  for _, want in ipairs(wanted) do
    sum = sum + want
  end
  if sum <= WHOLE then
    return own + math.floor((WHOLE - sum) / #wanted)
  end
  table.sort(wanted)
  local left = WHOLE
  for i, want in ipairs(wanted) do
    local level = math.floor(left / (#wanted - i + 1))
    if want > level then
      return math.min(own, level)
    end
    left = left - want
  end
  return own
end

local granted = {}
for i, key in ipairs(KEYS) do
  local own = tonumber(ARGV[i + 2])
  local rows = redis.call('HGETALL', key)
  local wanted, taken = {}, 0
  for j = 1, #rows, 2 do
    local want, part, until_ms = string.match(rows[j + 1], '^(%d+) (%d+) (%d+)$')
    if not want or tonumber(until_ms) <= now or rows[j] == ARGV[1] then
      redis.call('HDEL', key, rows[j])
    else
      wanted[#wanted + 1] = tonumber(want)
      taken = taken + tonumber(part)
    end
  end
  granted[i] = 0
  if own > 0 then
    wanted[#wanted + 1] = own
    granted[i] = math.max(0, math.min(fair(wanted, own), WHOLE - taken))
    local row = string.format('%d %d %.0f', own, granted[i], now + ARGV[2])
    redis.call('HSET', key, ARGV[1], row)
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return granted
