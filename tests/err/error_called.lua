local function need(x, what)
  if not x then error(what .. " is needed", 2) end
end

need(arg.size, "-D size")
