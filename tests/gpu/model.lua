-- The model of the CPU against GPU tests: every kind of layer and most options, real tile edges and odd ones.
local function option(name, default)
  local value = arg[name]
  if value == nil then return default end
  return value
end

local weights, moments = option("weights", "bf16"), option("moments", nil)

return trainer {
  name = "small",
  target = option("target", "cpu"),
  model = transformer {
    vocab_size = option("vocab", 504), d_model = option("d", 192), n_layers = 3, sequence_length = option("seq", 200),
    norm_placement = option("placement", "pre"),
    embedding = embedding { scale = option("emb_scale", 1), norm = option("emb_norm", false) },
    attention = function(layer)
      return attention {
        n_heads = 6, n_kv_heads = option("kv", 2), head_dim = option("head_dim", 32),
        qk_norm = option("qk", "head"), bias = option("bias", "none"),
        window = layer == 1 and option("window", 0) or 0,
        rope = layer == 2 and option("nope", false) and nope {} or rope { theta = 10000 },
      }
    end,
    feed_forward = function(layer)
      if layer == 0 then
        return mlp { hidden_size = 328, activation = option("act", "swiglu") }
      end
      return moe {
        num_experts = option("experts", 8), top_k = option("k", 2), hidden_size = option("hidden", 136),
        shared_hidden_size = option("shared", 72), activation = option("act", "swiglu"),
        router = router {
          score = option("score", "softmax"), normalize = option("normalize", true),
          n_groups = option("groups", 1), top_groups = option("groups", 1),
          load_balance = 0.02, z_loss = 0.002, balance_over = option("balance", "batch"),
          bias_gamma = layer == 1 and option("gamma", 0) or 0,
          routing = layer == 2 and option("routing", "learned") or "learned",
        },
      }
    end,
    lm_head = lm_head { tied = option("tied", false), z_loss = option("head_z", 0) },
    recompute = recompute { what = option("recompute", "none") },
  },
  batch = batch { micro = 3, global = option("global", 6), documents = option("documents", "ignore") },
  parallel = parallel {
    data = option("data", 1), expert = option("expert", 1), capacity = option("capacity", nil),
    pair_capacity = option("pair", nil),
    pipeline = option("pipeline", 1), overlap = not option("apart", false),
    schedule = option("pipeline", 1) > 1 and option("schedule", "1f1b") or nil,
  },
  precision = precision {
    weights = weights, moments = weights == "bf16" and moments or nil,
    experts = option("eight", nil), scale = option("scale", nil), exempt = option("eight", nil) and {} or nil,
  },
  optimizer = adamw {
    weight_decay = 0.1, clip_norm = 1.0,
    matrices = arg.muon and muon { row_beta = tonumber(arg.muon), per_head = true } or nil,
  },
}
