-- offsets beyond 2^56
return trainer {
  name = "x",
  target = "cpu", device_memory = 100,
  model = transformer {
    vocab_size = 256,
    d_model = 65536,
    n_layers = 2,
    sequence_length = 32,
    attention = attention { n_heads = 4, n_kv_heads = 2 },
    feed_forward = moe { num_experts = 65536, top_k = 2, hidden_size = 1048576 },
  },
  batch = batch { micro = 2, global = 4 },
  optimizer = adamw { },
}
