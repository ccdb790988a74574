local n = 7
assert(n % 2 == 0, "n must be even")
