-- expert parallelism over dense layers
return trainer {
  name = "dense",
  target = "cuda:sm_90a",
  model = transformer {
    vocab_size = 256, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = mlp { hidden_size = 8 },
  },
  batch = batch { micro = 1, global = 8 },
  parallel = parallel { data = 8, expert = 4 },
}
