while true do
  local s = string.format("%99.99f", 1e308)
end
