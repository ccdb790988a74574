return trainer [[
  several
  lines]]
