-- What wrk sends: KIND=check|add and ITEMS items a request, from two million users; with CONSISTENCY=strong, strong reads.
local kind, items = os.getenv("KIND") or "check", tonumber(os.getenv("ITEMS") or "1")
local path = "/v1/campaigns/bench/users" .. (kind == "check" and "/check" or "")
local extra = kind == "add" and ',"if_absent":true' or ""
local headers = { ["Content-Type"] = "application/json", ["X-Cuckood-Consistency"] = os.getenv("CONSISTENCY") }
local bodies, at = {}, 0
function init(args)
   math.randomseed(tonumber(tostring({}):match("0x(%x+)"), 16) % 2147483647)
   for i = 1, (items > 1 and 64 or 4096) do
      local list = {}
      for j = 1, items do list[j] = string.format('"u%015d"', math.random(0, 1999999)) end
      bodies[i] = wrk.format("POST", path, headers,
         '{"users":[' .. table.concat(list, ",") .. "]" .. extra .. "}")
   end
end
function request()
   at = at % #bodies + 1
   return bodies[at]
end
