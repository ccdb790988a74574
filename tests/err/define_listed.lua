-- flags: -D a=1
for k in pairs(arg) do print(k) end
