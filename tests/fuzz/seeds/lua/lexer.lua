#!/usr/bin/env lua
-- moe { top_k = 1 }
local s = "moe { top_k = 2 \" }" --[[ moe {
 top_k = 3 ]] local t = [==[ moe {
 top_k ]] ]=] = 4 } ]==]
local n = 0x1p-4 + .5e1 + 3. + 0xA.8 + 1e+2 .. 'a\z
  b\x41\u{42}\067'
goto done do ::skip:: end ::done::
return mlp { hidden_size = #t, [ [[k]] ] = 3; ["x"] = function(...) return ... end }
