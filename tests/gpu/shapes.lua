-- Other shapes than OLMoE for make bench-gpu, so that kernels are not tuned for one model alone. Eight microbatches of
-- 16,384 tokens a step: olmogen -D shape=dense|fine|windows|series [-D experts=8] tests/gpu/shapes.lua
-- OLMoE-1B-7B going on with 32 prompts at once: -D shape=series -D layers=16 -D length=1024 -D tokens=4096 -D rows=32

local function plain(theta)
  return function(heads, kv, window)
    return attention { n_heads = heads, n_kv_heads = kv, window = window, rope = rope { theta = theta } }
  end
end

local shapes = {
  -- Llama 3.2 1B's shape
  dense = {
    vocab_size = 128256,
    d_model = 2048,
    n_layers = 16,
    sequence_length = 8192,
    attention = plain(500000)(32, 8),
    feed_forward = mlp { hidden_size = 8192 },
    lm_head = lm_head { tied = true },
  },
  -- many small experts
  fine = {
    vocab_size = 100352,
    d_model = 2048,
    n_layers = 6,
    sequence_length = 4096,
    attention = plain(500000)(16, 4),
    feed_forward = moe {
      num_experts = 256,
      top_k = 8,
      hidden_size = 512,
      shared_hidden_size = 512,
      router = router { load_balance = 0.01, z_loss = 0.001 },
    },
    lm_head = lm_head { tied = false },
  },
  -- experts of OLMoE's size, any number of them, and always the same work
  series = {
    vocab_size = 50304,
    d_model = 2048,
    n_layers = arg.layers or 8,
    sequence_length = arg.length or 4096,
    attention = attention { n_heads = 16, qk_norm = "full", rope = rope { theta = 10000 } },
    feed_forward = moe {
      num_experts = arg.experts or 64,
      top_k = 8,
      hidden_size = 1024,
      router = router { normalize = false, load_balance = 0.01, z_loss = 0.001 },
    },
    lm_head = lm_head { tied = false },
  },
  -- long sequences, of which three layers of four see a window
  windows = {
    vocab_size = 100352,
    d_model = 2560,
    n_layers = 8,
    sequence_length = 16384,
    attention = function(layer)
      return plain(500000)(20, 4, layer % 4 == 3 and 0 or 4096)
    end,
    feed_forward = mlp { hidden_size = 10240 },
    lm_head = lm_head { tied = false },
  },
}

local shape = shapes[arg.shape or "dense"]
shape.norm = rms_norm { eps = 1e-5 }
shape.init = normal { std = 0.02 }
local micro = (arg.tokens or 16384) // shape.sequence_length

return trainer {
  name = arg.shape or "dense",
  target = "cuda:sm_90a",
  model = transformer(shape),
  batch = batch { micro = micro, global = 8 * micro },
  generation = generation { batch = arg.rows or 1 },
  optimizer = adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_norm = 1.0 },
}
