return trainer { name = "t", model = transformer { feed_forward = mpl { hiden_size = 16 } } }
