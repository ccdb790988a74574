return trainer {
  name = "v", device_memory = 0.02,
  model = transformer {
    vocab_size = 1024, d_model = 256, n_layers = 8, sequence_length = 128,
    attention = attention { n_heads = 4 },
    feed_forward = mlp { hidden_size = 512 },
    lm_head = lm_head { tied = true },
  },
  batch = batch { micro = 2, global = 32 },
  parallel = parallel { pipeline = 4, schedule = "v" },
}
