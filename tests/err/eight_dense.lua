return trainer {
  name = "t",
  target = "cpu",
  model = transformer {
    vocab_size = 64, d_model = 128, n_layers = 4, sequence_length = 8,
    attention = attention { n_heads = 2, n_kv_heads = 1 },
    feed_forward = mlp { hidden_size = 64 },
  },
  batch = batch { micro = 1, global = 8 },
  precision = precision { experts = "mxfp8" },
}
