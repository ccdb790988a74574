return trainer {
  name = "t",
  target = "cpu",
  model = transformer {
    vocab_size = 64, d_model = 128, n_layers = 4, sequence_length = 8,
    attention = attention { n_heads = 2, n_kv_heads = 1 },
    feed_forward = moe { num_experts = 8, top_k = 2, hidden_size = 160, shared_hidden_size = 96 },
  },
  batch = batch { micro = 1, global = 8 },
  precision = precision { experts_dx = "mxfp8", exempt = { 1, 4 } },
}
