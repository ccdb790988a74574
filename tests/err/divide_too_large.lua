-- every value by which the rule would hold needs more memory than there is
return trainer {
  name = "large", device_memory = 0.001,
  model = transformer {
    vocab_size = 256, d_model = 512, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 8, n_kv_heads = 3 },
    feed_forward = mlp { hidden_size = 512 },
  },
  batch = batch { micro = 1, global = 1 },
}
