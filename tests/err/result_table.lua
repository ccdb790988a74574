return { name = "t" }
