-- mixed, every default filled in; olmogen regenerates this tree from this file.
local attention_a = attention { -- mixed.lua:10
  n_heads = 4, -- mixed.lua:11
  n_kv_heads = 2, -- mixed.lua:11
  head_dim = 4, -- mixed.lua:11
  qk_norm = "head", -- mixed.lua:11
  bias = "none",
  window = 0, -- mixed.lua:12
  rope = nope {}, -- mixed.lua:13
}
local attention_b = attention { -- mixed.lua:10
  n_heads = 4, -- mixed.lua:11
  n_kv_heads = 2, -- mixed.lua:11
  head_dim = 4, -- mixed.lua:11
  qk_norm = "head", -- mixed.lua:11
  bias = "none",
  window = 3, -- mixed.lua:12
  rope = rope { theta = 100, scaling = unscaled {} }, -- mixed.lua:13
}
local feed_forward_a = mlp { -- mixed.lua:17
  hidden_size = 12, -- mixed.lua:17
  activation = "swiglu",
}
local feed_forward_b = moe { -- mixed.lua:18
  num_experts = 4, -- mixed.lua:19
  top_k = 1, -- mixed.lua:19
  hidden_size = 6, -- mixed.lua:19
  shared_hidden_size = 4, -- mixed.lua:19
  activation = "swiglu",
  router = router { -- mixed.lua:20
    score = "softmax",
    normalize = false,
    weight_scale = 1,
    n_groups = 1,
    top_groups = 1,
    load_balance = 0.01,
    balance_over = "batch",
    z_loss = 0.001,
    routing = "random", -- mixed.lua:20
    bias_gamma = 0,
  },
}
local feed_forward_c = moe { -- mixed.lua:18
  num_experts = 12, -- mixed.lua:19
  top_k = 3, -- mixed.lua:19
  hidden_size = 6, -- mixed.lua:19
  shared_hidden_size = 4, -- mixed.lua:19
  activation = "swiglu",
  router = router { -- mixed.lua:20
    score = "softmax",
    normalize = true, -- mixed.lua:20
    weight_scale = 1,
    n_groups = 1,
    top_groups = 1,
    load_balance = 0.01,
    balance_over = "batch",
    z_loss = 0.001,
    routing = "learned",
    bias_gamma = 0.001, -- mixed.lua:20
  },
}
local recompute_a = recompute { -- mixed.lua:23
  what = "none", -- mixed.lua:23
}
local recompute_b = recompute { -- mixed.lua:23
  what = "block", -- mixed.lua:23
}

return trainer { -- mixed.lua:3
  name = "mixed", -- mixed.lua:4
  target = "cpu",
  device_memory = 0,
  model = transformer { -- mixed.lua:6
    vocab_size = 32, -- mixed.lua:7
    d_model = 8, -- mixed.lua:7
    n_layers = 5, -- mixed.lua:7
    sequence_length = 4, -- mixed.lua:7
    norm = rms_norm { eps = 1e-05 },
    norm_placement = "peri", -- mixed.lua:8
    embedding = embedding { scale = 1, norm = false },
    attention = { -- mixed.lua:9
      attention_a, attention_b, attention_a, attention_b, attention_a,
    },
    feed_forward = { -- mixed.lua:16
      feed_forward_a, feed_forward_b, feed_forward_a, feed_forward_c, feed_forward_a,
    },
    recompute = { -- mixed.lua:23
      recompute_a, recompute_a, recompute_a, recompute_b, recompute_a,
    },
    lm_head = lm_head { tied = true, z_loss = 0.0001 }, -- mixed.lua:24
    init = normal { std = 0.02 },
  },
  batch = batch { micro = 1, global = 2, documents = "ignore" }, -- mixed.lua:26
  parallel = parallel { data = 1, expert = 1, pipeline = 1, overlap = true },
  precision = precision { -- mixed.lua:5
    weights = "fp64", -- mixed.lua:5
    grads = "fp64",
    optimizer = "fp64",
    moments = "fp64",
    experts = "fp64",
  },
  optimizer = adamw {
    betas = { 0.9, 0.95 },
    eps = 1e-08,
    weight_decay = 0.1,
    clip_norm = 1,
    average = false,
    matrices = adam {},
    expert_lr_scale = 1,
    groups = {},
  },
  generation = generation { batch = 1, prompt = 0 },
  fuse = true,
}
