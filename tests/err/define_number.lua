-- flags: -D experts=0x1p3 -D lb=-1e-3
return trainer {
  name = "t",
  target = "cpu",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 2, n_kv_heads = 1 },
    feed_forward = moe {
      num_experts = arg.experts,
      top_k = 2,
      hidden_size = 8,
      router = router { load_balance = arg.lb },
    },
  },
  batch = batch { micro = 1, global = 8 },
  parallel = parallel { data = 2, expert = 2 },
  optimizer = adamw { betas = { 0.9, 0.95 } },
}
