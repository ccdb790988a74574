return trainer { --[[ the rest
  name = "t" }
