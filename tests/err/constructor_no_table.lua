local a = moe()
local b = rms_norm "x"
local c = rope(1, 2)
return trainer(nil)
