-- mixed, every default filled in; olmogen regenerates this tree from this file.
local attention_a = attention {
  n_heads = 4,
  n_kv_heads = 2,
  head_dim = 4,
  qk_norm = "head",
  bias = "none",
  window = 0,
  rope = nope {},
}
local attention_b = attention {
  n_heads = 4,
  n_kv_heads = 2,
  head_dim = 4,
  qk_norm = "head",
  bias = "none",
  window = 3,
  rope = rope { theta = 100, scaling = unscaled {} },
}
local feed_forward_a = mlp {
  hidden_size = 12,
  activation = "swiglu",
}
local feed_forward_b = moe {
  num_experts = 4,
  top_k = 1,
  hidden_size = 6,
  shared_hidden_size = 4,
  activation = "swiglu",
  router = router {
    score = "softmax",
    normalize = false,
    weight_scale = 1,
    n_groups = 1,
    top_groups = 1,
    load_balance = 0.01,
    balance_over = "batch",
    z_loss = 0.001,
    routing = "random",
    bias_gamma = 0,
  },
}
local feed_forward_c = moe {
  num_experts = 12,
  top_k = 3,
  hidden_size = 6,
  shared_hidden_size = 4,
  activation = "swiglu",
  router = router {
    score = "softmax",
    normalize = true,
    weight_scale = 1,
    n_groups = 1,
    top_groups = 1,
    load_balance = 0.01,
    balance_over = "batch",
    z_loss = 0.001,
    routing = "learned",
    bias_gamma = 0.001,
  },
}
local recompute_a = recompute {
  what = "none",
}
local recompute_b = recompute {
  what = "block",
}

return trainer {
  name = "mixed",
  target = "cpu",
  device_memory = 0,
  model = transformer {
    vocab_size = 32,
    d_model = 8,
    n_layers = 5,
    sequence_length = 4,
    norm = rms_norm { eps = 1e-05 },
    norm_placement = "peri",
    embedding = embedding { scale = 1, norm = false },
    attention = {
      attention_a, attention_b, attention_a, attention_b, attention_a,
    },
    feed_forward = {
      feed_forward_a, feed_forward_b, feed_forward_a, feed_forward_c, feed_forward_a,
    },
    recompute = {
      recompute_a, recompute_a, recompute_a, recompute_b, recompute_a,
    },
    lm_head = lm_head { tied = true, z_loss = 0.0001 },
    init = normal { std = 0.02 },
  },
  batch = batch { micro = 1, global = 2 },
  parallel = parallel { data = 1, expert = 1, pipeline = 1 },
  precision = precision { weights = "fp64", grads = "fp64", optimizer = "fp64" },
  optimizer = adamw {
    betas = { 0.9, 0.95 },
    eps = 1e-08,
    weight_decay = 0.1,
    clip_norm = 1,
    groups = {},
  },
  fuse = true,
}
