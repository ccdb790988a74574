return trainer {
  name = "t",
  target = "cpu",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 2, n_kv_heads = 1 },
    feed_forward = moe {
      num_experts = 8,
      top_k = 2,
      hidden_size = 8,
      router = router { load_balance = 0.01 },
    },
  },
  batch = batch { micro = 1, global = 8 },
  parallel = parallel { data = 2, expert = 2 },
  precision = precision { weights = "bf16", moments = "bf8" },
  optimizer = adamw { betas = { 0.9, 0.95 } },
}
