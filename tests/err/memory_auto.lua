-- nothing that could be recomputed is enough: what is left then, and what else would help
return trainer {
  name = "too-big-again",
  target = "cuda:sm_90a",
  device_memory = 79, -- an H100
  model = transformer {
    vocab_size = 50304, d_model = 2048, n_layers = 16, sequence_length = 4096,
    attention = attention { n_heads = 16, qk_norm = "full" },
    feed_forward = moe { num_experts = 64, top_k = 8, hidden_size = 1024 },
    recompute = recompute { what = "auto" },
  },
  batch = batch { micro = 4, global = 1024 },
}
