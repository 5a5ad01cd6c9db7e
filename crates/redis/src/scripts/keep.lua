-- Of the facts of one kind, drops some that have ended, and lets both keys live until the last of the others ends, for a
-- day at most: a fleet that is switched off leaves nothing, and one that runs renews this with each beat.
local function keep(facts, ends, now)
  local over = redis.call('ZRANGE', ends, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 64)
  if #over > 0 then
    redis.call('HDEL', facts, unpack(over))
    redis.call('ZREM', ends, unpack(over))
  end
  local last = redis.call('ZRANGE', ends, 0, 0, 'REV', 'WITHSCORES')[2]
  if last then
    local until_ms = string.format('%.0f', math.min(tonumber(last), now + 86400000))
    redis.call('PEXPIREAT', facts, until_ms)
    redis.call('PEXPIREAT', ends, until_ms)
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
