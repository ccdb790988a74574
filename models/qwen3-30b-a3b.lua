-- Qwen3-30B-A3B (Qwen team 2025): 30.5 billion parameters, 3.3 billion active for a token.
-- The published model's shape; the batch and the layout are examples.

return trainer {
  name = "qwen3-30b-a3b",
  target = "cuda:sm_90a",

  model = transformer {
    vocab_size = 151936,
    d_model = 2048,
    n_layers = 48,
    sequence_length = 4096,
    norm = rms_norm { eps = 1e-6 },
    attention = attention {
      n_heads = 32,
      n_kv_heads = 4,
      head_dim = 128,
      qk_norm = "head",
      rope = rope { theta = 1000000 },
    },
    feed_forward = moe {
      num_experts = arg.experts or 128,
      top_k = 8,
      hidden_size = 768,
      router = router { score = "softmax", normalize = true, load_balance = 0.001, z_loss = 0 },
    },
    recompute = recompute { what = "experts" },
    lm_head = lm_head { tied = false },
    init = normal { std = 0.02 },
  },

  batch = batch { micro = arg.micro or 1, global = 1024 }, -- 4 Mi tokens a step
  parallel = parallel { data = arg.data or 8, expert = arg.expert or 8 },
  optimizer = adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_norm = 1.0 },
}
