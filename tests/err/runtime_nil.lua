local t = {}
local n = t.model.width * 2
