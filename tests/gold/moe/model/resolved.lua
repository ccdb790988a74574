-- moe, every default filled in; olmogen regenerates this tree from this file.

return trainer { -- moe.lua:2
  name = "moe", -- moe.lua:3
  target = "cpu",
  device_memory = 0,
  model = transformer { -- moe.lua:4
    vocab_size = 32, -- moe.lua:5
    d_model = 8, -- moe.lua:5
    n_layers = 3, -- moe.lua:5
    sequence_length = 4, -- moe.lua:5
    norm = rms_norm { eps = 1e-05 },
    norm_placement = "pre",
    embedding = embedding { scale = 1, norm = false },
    attention = attention { -- moe.lua:6
      n_heads = 2, -- moe.lua:6
      n_kv_heads = 2,
      head_dim = 4,
      qk_norm = "full", -- moe.lua:6
      bias = "none",
      window = 0,
      rope = rope { theta = 10000, scaling = unscaled {} },
    },
    feed_forward = moe { -- moe.lua:7
      num_experts = 4, -- moe.lua:7
      top_k = 2, -- moe.lua:7
      hidden_size = 6, -- moe.lua:7
      shared_hidden_size = 0,
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
        routing = "learned",
        bias_gamma = 0,
      },
    },
    recompute = recompute { what = "none" },
    lm_head = lm_head { tied = false, z_loss = 0 },
    init = normal { std = 0.02 },
  },
  batch = batch { micro = 2, global = 4, documents = "ignore" }, -- moe.lua:9
  parallel = parallel { data = 1, expert = 1, pipeline = 1, overlap = true },
  precision = precision {
    weights = "fp32",
    grads = "fp32",
    optimizer = "fp32",
    moments = "fp32",
    experts = "fp32",
  },
  optimizer = adamw { -- moe.lua:10
    betas = { 0.9, 0.95 },
    eps = 1e-08,
    weight_decay = 0.1,
    clip_norm = 1,
    average = false,
    matrices = adam {},
    expert_lr_scale = 1,
    groups = { group { match = "*gate.weight", lr_scale = 0.5 } }, -- moe.lua:10
  },
  generation = generation { batch = 1, prompt = 0 },
  fuse = true,
}
