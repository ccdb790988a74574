return trainer {
  name = "t"
  target = "cpu",
}
