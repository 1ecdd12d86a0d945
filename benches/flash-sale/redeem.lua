-- What wrk sends: redemptions in the open pool POOL, each by a user of its own.
local pool = os.getenv("POOL")
local path = "/v1/coupons/" .. pool .. "/redemptions"
local headers, user = { ["Content-Type"] = "application/json" }, 0
function request()
   user = user + 1
   local body = string.format('{"code":"u%012d","reference":"order-%012d"}', user, user)
   return wrk.format("POST", path, headers, body)
end
