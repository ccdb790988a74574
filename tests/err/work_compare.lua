local a, b = ("x"):rep(1000000) .. "a", ("x"):rep(1000000) .. "b"
while true do
  local c = a < b
end
