local s = "abc"
return s:find("b")
