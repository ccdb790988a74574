local function f()
  return {
    1, 2,

return trainer { }
