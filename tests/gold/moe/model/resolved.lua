-- moe, every default filled in; olmogen regenerates this tree from this file.

return trainer {
  name = "moe",
  target = "cpu",
  device_memory = 0,
  model = transformer {
    vocab_size = 32,
    d_model = 8,
    n_layers = 3,
    sequence_length = 4,
    norm = rms_norm { eps = 1e-05 },
    attention = attention {
      n_heads = 2,
      n_kv_heads = 2,
      head_dim = 4,
      qk_norm = "full",
      rope = rope { theta = 10000 },
    },
    feed_forward = moe {
      num_experts = 4,
      top_k = 2,
      hidden_size = 6,
      shared_hidden_size = 0,
      activation = "swiglu",
      router = router { score = "softmax", normalize = false, load_balance = 0.01, z_loss = 0.001 },
    },
    lm_head = lm_head { tied = false },
    init = normal { std = 0.02 },
  },
  batch = batch { micro = 2, global = 4 },
  parallel = parallel { data = 1, expert = 1, pipeline = 1 },
  precision = precision { weights = "fp32", grads = "fp32", optimizer = "fp32" },
  optimizer = adamw {
    betas = { 0.9, 0.95 },
    eps = 1e-08,
    weight_decay = 0.1,
    clip_norm = 1,
    groups = { group { match = "*gate.weight", lr_scale = 0.5 } },
  },
}
