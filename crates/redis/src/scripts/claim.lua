-- Takes a claim that nobody has. KEYS: the claim, the last token. ARGV: for how many milliseconds.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return false
end
-- Tokens grow even over a restart that loses the last one, since they are not less than the time in microseconds. So the
-- last one need not be kept for longer than clocks are set back by.
local time = redis.call('TIME')
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
local token = string.format('%.0f', math.max(last + 1, time[1] * 1000000 + time[2]))
redis.call('SET', KEYS[1], token, 'PX', ARGV[1])
redis.call('SET', KEYS[2], token, 'PX', 86400000)
return token
