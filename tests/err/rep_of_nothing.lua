local s = ("").rep("", math.maxinteger)
local t = nil + s
