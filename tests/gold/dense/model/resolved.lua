-- dense, every default filled in; olmogen regenerates this tree from this file.

return trainer { -- dense.lua:2
  name = "dense", -- dense.lua:3
  target = "cpu",
  device_memory = 0,
  model = transformer { -- dense.lua:4
    vocab_size = 32, -- dense.lua:5
    d_model = 8, -- dense.lua:5
    n_layers = 1, -- dense.lua:5
    sequence_length = 4, -- dense.lua:5
    norm = rms_norm { eps = 1e-05 },
    norm_placement = "pre",
    embedding = embedding { scale = 1, norm = false },
    attention = attention { -- dense.lua:6
      n_heads = 2, -- dense.lua:6
      n_kv_heads = 2,
      head_dim = 4,
      qk_norm = "none",
      bias = "none",
      window = 0,
      rope = rope { theta = 10000, scaling = unscaled {} },
    },
    feed_forward = mlp { hidden_size = 12, activation = "swiglu" }, -- dense.lua:7
    recompute = recompute { what = "none" },
    lm_head = lm_head { tied = false, z_loss = 0 },
    init = normal { std = 0.02 },
  },
  batch = batch { micro = 1, global = 2, documents = "ignore" }, -- dense.lua:9
  parallel = parallel { data = 1, expert = 1, pipeline = 1, overlap = true },
  precision = precision {
    weights = "fp32",
    grads = "fp32",
    optimizer = "fp32",
    moments = "fp32",
    experts = "fp32",
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
