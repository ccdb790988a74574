-- an error in a function of the library that is called last: still where it is called, not where its caller is
local function names()
  return table.concat({ "a", {} }, ", ")
end
return names()
