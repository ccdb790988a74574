local x = string.gsub("a", "b", "c")
