-- Gives back a claim, if it still is the one with this token. KEYS: the claim. ARGV: the token.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
