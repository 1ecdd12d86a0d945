-- One for each user while stocks last, as it is often written for Redis. Answers how many were left, 0 if it is sold out, and -1 if the user
-- has one. No holds, no numbers, and a repeated request gets another answer.
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return -1 end
local left = tonumber(redis.call('GET', KEYS[1]) or '0')
if left <= 0 then return 0 end
redis.call('DECR', KEYS[1])
redis.call('SADD', KEYS[2], ARGV[1])
return left
