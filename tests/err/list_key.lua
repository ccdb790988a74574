return { [1] = trainer { name = "t" }, [5] = 3 }
