local wide = math.flor(2.5)
