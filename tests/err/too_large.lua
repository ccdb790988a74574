-- sizes beyond 64 bits
return trainer {
  name = "too-large",
  model = transformer {
    vocab_size = 16777216, d_model = 1048576, n_layers = 1024, sequence_length = 16777216,
    attention = attention { n_heads = 65536, head_dim = 4096 },
    feed_forward = moe { num_experts = 65536, top_k = 65536, hidden_size = 1048576 },
  },
  batch = batch { micro = 1048576, global = 1073741824 },
}
