-- Mixtral 8x7B (Jiang et al. 2024): 46.7 billion parameters, 12.9 billion active for a token.
-- The published model's shape; the sequences, the batch and the layout are examples.

return trainer {
  name = "mixtral-8x7b",
  target = "cuda:sm_90a",

  model = transformer {
    vocab_size = 32000,
    d_model = 4096,
    n_layers = 32,
    sequence_length = 4096,
    norm = rms_norm { eps = 1e-5 },
    attention = attention { n_heads = 32, n_kv_heads = 8, rope = rope { theta = 1000000 } },
    feed_forward = moe {
      num_experts = arg.experts or 8,
      top_k = 2,
      hidden_size = 14336,
      router = router { score = "topk_softmax", load_balance = 0.02, z_loss = 0 },
    },
    lm_head = lm_head { tied = false },
    init = normal { std = 0.02 },
  },

  batch = batch { micro = arg.micro or 1, global = 1024 }, -- 4 Mi tokens a step
  parallel = parallel { data = arg.data or 16, expert = arg.expert or 8, capacity = arg.capacity or 1.5 },
  optimizer = adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_norm = 1.0 },
}
