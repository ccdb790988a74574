local t = { make = attention }
return trainer { model = transformer { attention = t.make { n_heads = "two", n_layers = 1 } } }
