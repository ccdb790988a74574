-- Olmo-core 3's Mixture-of-Experts models with their layouts, 13 billion to 2.4 trillion parameters:
--   olmogen --plan -D size=tiny|small|medium|large|ultra models/olmo3-moe.lua
-- The published shapes; the first layers are dense, as wide as four routed experts and the shared
-- one. The published layouts; tiny's is of machines with more memory, here it recomputes experts.
-- The other published members of medium and ultra:
--   -D size=medium -D experts=64|96 -D data=64 -D pipeline=2
--   -D size=ultra -D experts=256 -D expert=32 -D micro=2

local sizes = {
  -- layers, dense ones, width, query heads, key/value heads, expert width, experts
  tiny = { 16, 1, 2048, 16, 4, 2048, 64 },
  small = { 32, 1, 2560, 24, 6, 2560, 64 },
  medium = { 39, 2, 3072, 32, 8, 3072, 128 },
  large = { 47, 2, 4096, 40, 10, 4096, 128 },
  ultra = { 63, 2, 6144, 64, 32, 8192, 128 },
}
local layouts = {
  -- data, expert, pipeline; sequences a microbatch and a step; what is computed again
  tiny = { 16, 1, 1, 8, 1024, "experts" },
  small = { 128, 8, 1, 3, 3072, "none" },
  medium = { 32, 8, 4, 2, 3072, "none" },
  large = { 128, 8, 4, 1, 4096, "none" },
  ultra = { 64, 8, 8, 1, 8192, "block" },
}

local size = arg.size or "tiny"
local shape = sizes[size] or error("size is tiny, small, medium, large or ultra")
local layers, dense, width, heads, kv_heads, hidden, experts = table.unpack(shape)
local data, expert, pipeline, micro, global, again = table.unpack(layouts[size])
experts = arg.experts or experts

return trainer {
  name = "olmo3-moe-" .. size .. "-" .. experts .. "e",
  target = "cuda:sm_100a",

  model = transformer {
    vocab_size = 100352,
    d_model = width,
    n_layers = layers,
    sequence_length = 8192,
    norm = rms_norm { eps = 1e-6 },
    norm_placement = "peri",
    embedding = embedding { scale = math.sqrt(width), norm = true },
    attention = attention {
      n_heads = heads,
      n_kv_heads = kv_heads,
      head_dim = 128,
      qk_norm = "head",
      rope = rope { theta = 500000 },
    },
    feed_forward = function(layer)
      if layer < dense then
        return mlp { hidden_size = 5 * hidden }
      end
      return moe {
        num_experts = experts,
        top_k = 4,
        hidden_size = hidden,
        shared_hidden_size = hidden,
        router = router {
          normalize = true,
          weight_scale = 4,
          load_balance = size == "ultra" and 0.005 or 0.01,
          z_loss = 2e-4,
        },
      }
    end,
    recompute = recompute { what = arg.recompute or again },
    lm_head = lm_head { tied = false, z_loss = 1e-4 },
    init = normal { std = 0.01 },
  },

  batch = batch { micro = arg.micro or micro, global = arg.global or global },
  parallel = parallel {
    data = arg.data or data,
    expert = arg.expert or expert,
    pipeline = arg.pipeline or pipeline,
    capacity = arg.capacity or 1.25, -- OLMo-core's: rows beyond it are cut, and counted
    -- over several hosts every two ranks exchange so many times a mean's rows, and what is beyond them is cut
    pair_capacity = (arg.expert or expert) > 8 and 2 or nil,
  },
  optimizer = adamw {
    betas = { 0.9, 0.95 },
    weight_decay = 0.1,
    clip_norm = 1.0,
    groups = { group { match = "model.embed_tokens.weight", weight_decay = 0 } },
  },
}
