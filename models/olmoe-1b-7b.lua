-- OLMoE-1B-7B (Muennighoff et al. 2024): 6.9 billion parameters, 1.3 billion active for a token.
-- The published model's shape; the batch is that of its pre-training, 4 Mi tokens a step. A B200 has room for all that
-- is kept of 4 sequences, on an H200 rows of routed experts are computed again.

return trainer {
  name = "olmoe-1b-7b",
  target = "cuda:sm_90a",

  model = transformer {
    vocab_size = 50304,
    d_model = 2048,
    n_layers = 16,
    sequence_length = 4096,
    norm = rms_norm { eps = 1e-5 },
    attention = attention { n_heads = 16, qk_norm = "full", rope = rope { theta = 10000 } },
    feed_forward = moe {
      num_experts = arg.experts or 64,
      top_k = 8,
      hidden_size = 1024,
      activation = "swiglu",
      router = router { score = "softmax", normalize = false, load_balance = 0.01, z_loss = 0.001 },
    },
    recompute = recompute { what = arg.recompute or "auto" },
    lm_head = lm_head { tied = false },
    init = normal { std = 0.02 },
  },

  batch = batch { micro = arg.micro or 4, global = arg.global or 1024 },
  parallel = parallel {
    data = arg.data or 1, expert = arg.expert or 1, pipeline = arg.pipeline or 1, capacity = arg.capacity,
  },
  precision = precision { moments = arg.moments }, -- "bf16": 26 GiB less
  optimizer = adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_norm = 1.0 },
}
