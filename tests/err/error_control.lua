error("a\27[31mb\nc\td")
