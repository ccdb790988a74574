-- sizes that the GPU's kernels cannot do, each at the field behind it
return trainer {
  name = "odd",
  target = "cuda:sm_90a",
  model = transformer {
    vocab_size = 1001, d_model = 144, n_layers = 2, sequence_length = 64,
    attention = attention { n_heads = 3 },
    feed_forward = moe { num_experts = 4, top_k = 2, hidden_size = 52 },
  },
  batch = batch { micro = 1, global = 1 },
}
