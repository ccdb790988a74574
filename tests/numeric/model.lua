-- The model whose gradients model_check.c proves, in fp64, and whose bf16 bf16_check.c compares with fp32: small, odd
-- sizes, every option by -D.
local function option(name, default)
  local value = arg[name]
  if value == nil then return default end
  return value
end

local scaling = option("rope", "unscaled")
local ropes = {
  unscaled = rope { theta = 100 },
  linear = rope { theta = 100, scaling = linear_scaling { factor = 3 } },
  yarn = rope { theta = 100, scaling = yarn { factor = 4, original_length = 8, beta_fast = 2, beta_slow = 0.5 } },
  llama3 = rope { theta = 100, scaling = llama3 { factor = 4, original_length = 16, high_freq_factor = 3 } },
  nope = nope {},
}
local experts = 6

return trainer {
  name = "proof",
  target = "cpu",
  model = transformer {
    vocab_size = 37,
    d_model = 12,
    n_layers = 2,
    sequence_length = option("seq", 9),
    norm = rms_norm { eps = 1e-3 },
    norm_placement = option("placement", "pre"),
    embedding = embedding { scale = option("emb_scale", 1), norm = option("emb_norm", false) },
    attention = function(layer)
      return attention {
        n_heads = 6, n_kv_heads = option("kv", 2), head_dim = 4,
        qk_norm = option("qk", "none"),
        bias = option("bias", "none"),
        window = layer == 1 and option("window", 0) or 0,
        rope = layer == 1 and ropes[option("rope2", scaling)] or ropes[scaling],
      }
    end,
    feed_forward = function(layer)
      if layer == option("dense", 0) then
        return mlp { hidden_size = 14, activation = option("act", "swiglu") }
      end
      return moe {
        num_experts = experts, top_k = option("k", 2), hidden_size = 7,
        shared_hidden_size = option("shared", 0), activation = option("act", "swiglu"),
        router = router {
          score = option("score", "softmax"), normalize = option("normalize", false),
          weight_scale = option("weight_scale", 1), n_groups = option("groups", 1),
          top_groups = option("top_groups", option("groups", 1)),
          load_balance = 0.3, balance_over = option("balance", "batch"), z_loss = 0.2,
          routing = option("routing", "learned"), bias_gamma = option("gamma", 0),
        },
      }
    end,
    lm_head = lm_head { tied = option("tied", false), z_loss = option("head_z", 0) },
  },
  generation = generation { batch = option("rows", 1), prompt = option("prompt", 0) },
  batch = batch { micro = 2, global = 6, documents = option("documents", "ignore") },
  precision = precision { weights = option("weights", "fp64") },
  optimizer = adamw {
    weight_decay = 0.1, clip_norm = option("clip", 0.01),
    groups = {
      group { match = "*embed_tokens*", weight_decay = 0.02, lr_scale = 0.5 },
      group { match = "*gate.weight", weight_decay = 0 },
    },
  },
}
