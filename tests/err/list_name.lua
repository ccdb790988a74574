local t = trainer {
  name = "t",
}
return { t, a = 4 }
