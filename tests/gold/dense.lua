-- the smallest: one dense layer, everything else by default
return trainer {
  name = "dense",
  model = transformer {
    vocab_size = 32, d_model = 8, n_layers = 1, sequence_length = 4,
    attention = attention { n_heads = 2 },
    feed_forward = mlp { hidden_size = 12 },
  },
  batch = batch { micro = 1, global = 2 },
}
