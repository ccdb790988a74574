local function spin()
  for i = 1, math.huge do end
end

spin()
