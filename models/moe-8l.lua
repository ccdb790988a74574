-- Olmo-core 3's eight-layer benchmark series, 4.6 to 47 billion parameters by number of experts:
--   olmogen --plan -D experts=8|32|48|64|128 models/moe-8l.lua

local experts = arg.experts or 64

return trainer {
  name = "moe-8l-" .. experts .. "e",
  target = "cuda:sm_90a",

  model = transformer {
    vocab_size = 100352,
    d_model = 4096,
    n_layers = 8,
    sequence_length = 8192,
    norm = rms_norm { eps = 1e-6 },
    norm_placement = "post",
    embedding = embedding { scale = 64, norm = true }, -- the root of d_model
    attention = attention {
      n_heads = 32,
      n_kv_heads = 8,
      qk_norm = "head",
      rope = rope { theta = 500000 },
    },
    feed_forward = function(layer)
      if layer == 0 then
        return mlp { hidden_size = 20480 } -- as wide as four routed experts and the shared one
      end
      return moe {
        num_experts = experts,
        top_k = 4,
        hidden_size = 4096,
        shared_hidden_size = 4096,
        router = router { normalize = true, load_balance = 0.015, z_loss = 1e-4 },
      }
    end,
    recompute = recompute { what = "auto" },
    lm_head = lm_head { tied = false, z_loss = 1e-4 },
    init = normal { std = 0.01 },
  },

  batch = batch { micro = 2, global = arg.global or 512 }, -- 4 Mi tokens a step
  parallel = parallel { data = arg.data or 8, expert = arg.expert or 8, capacity = arg.capacity or 1.1875 },
  optimizer = adamw {
    betas = { 0.9, 0.95 },
    weight_decay = 0.1,
    clip_norm = 1.0,
    groups = { group { match = "model.embed_tokens.weight", weight_decay = 0 } },
  },
}
