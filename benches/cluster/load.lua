-- What wrk sends to the nodes at PORTS, a thread to each: KIND and ITEMS as requests.lua has them, or with KIND=redeem every code of
-- COUPON once, of which each thread has CODES.
local ports, threads = {}, 0
for port in os.getenv("PORTS"):gmatch("%d+") do ports[#ports + 1] = port end
function setup(thread)
   threads = threads + 1
   thread.addr = wrk.lookup("127.0.0.1", ports[threads])[1]
   thread:set("number", threads)
end
if os.getenv("KIND") ~= "redeem" then
   dofile("requests.lua")
   return
end
local path, codes = "/v1/coupons/" .. os.getenv("COUPON") .. "/redemptions", tonumber(os.getenv("CODES"))
local headers, at = { ["Content-Type"] = "application/json" }, 0
function request()
   at = at + 1
   local code = (number - 1) * codes + at
   return wrk.format("POST", path, headers, string.format('{"code":"c%09d","reference":"order-%09d"}', code, code))
end
