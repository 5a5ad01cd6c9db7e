-- A node says that it lives, and hears who else does and what time it is.
-- KEYS: the owner, when each node was heard of, what each shows, the kinds, then facts and ends of each kind that this
-- node knows of.
-- ARGV: fleet, node, what it shows, for how many milliseconds the owner mark lasts, and a node that says nothing.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then
  return {owner, time[1], time[2], 0, {}, {}, {}, {}}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])

-- A store that does not know a node which was here a second ago has lost its data.
local known = redis.call('ZSCORE', KEYS[2], ARGV[2]) and 1 or 0
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[2])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
local silent = string.format('%.0f', now - ARGV[5])
for _, node in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', silent, 'BYSCORE')) do
  redis.call('ZREM', KEYS[2], node)
  redis.call('HDEL', KEYS[3], node)
end
redis.call('PEXPIRE', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[3], ARGV[5])

for i = 5, #KEYS, 2 do
  keep(KEYS[i], KEYS[i + 1], now)
end
redis.call('PEXPIRE', KEYS[4], 86400000)

local nodes, heard = {}, {}
local all = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  nodes[#nodes + 1] = all[i]
  heard[#heard + 1] = tonumber(all[i + 1])
end
local reports = redis.call('HMGET', KEYS[3], unpack(nodes))
for i = 1, #nodes do
  reports[i] = reports[i] or ''
end
return {ARGV[1], time[1], time[2], known, nodes, heard, reports, redis.call('SMEMBERS', KEYS[4])}
