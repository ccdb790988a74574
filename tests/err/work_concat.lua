local s = {}
for i = 1, 200000 do
  s[i] = i
end
while true do
  local x = #table.concat(s, "")
end
