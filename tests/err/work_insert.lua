local s = {}
for i = 1, 200000 do
  s[i] = i
end
while true do
  table.insert(s, 1, 3)
  table.remove(s, 1)
end
