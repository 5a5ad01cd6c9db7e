-- Writes facts of one kind, and lets the other nodes know.
-- KEYS: the kinds, the facts, when each of them ends.
-- ARGV: the channel, the kind, then of each fact: its field, its number, when it ends, and the fact.
redis.call('SADD', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], 86400000)
for i = 3, #ARGV, 4 do
  local stored = redis.call('HGET', KEYS[2], ARGV[i])
  -- What was sent twice may arrive in any order.
  if not stored or cjson.decode(stored).fact.number < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 3])
    redis.call('ZADD', KEYS[3], ARGV[i + 2], ARGV[i])
    redis.call('PUBLISH', ARGV[1], ARGV[i + 3])
  end
end
keep(KEYS[2], KEYS[3], now)
