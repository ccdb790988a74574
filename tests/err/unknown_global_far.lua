return trainer { name = "t", target = targt }
