-- sizes that the GPU's kernels cannot do: the field that says them, and what would do
return trainer {
  name = "needs",
  target = "cuda:sm_90a",
  model = transformer {
    vocab_size = 1001, d_model = 9216, n_layers = 2, sequence_length = 64,
    attention = attention { n_heads = 8, head_dim = 40 },
    feed_forward = moe { num_experts = 600, top_k = 2, hidden_size = 52 },
  },
  batch = batch { micro = 1, global = 1 },
}
