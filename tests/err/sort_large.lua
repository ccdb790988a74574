local t = {}
for i = 1, 101 do t[i] = -i end
table.sort(t)
