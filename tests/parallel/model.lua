-- A small model for layouts: dense and MoE layers, a shared expert, more than one expert a token.
local function number(name, default)
  return tonumber(arg[name]) or default
end

return trainer {
  name = "layout",
  target = "cpu",
  model = transformer {
    vocab_size = 256,
    d_model = 32,
    n_layers = number("layers", 4),
    sequence_length = 32,
    attention = attention { n_heads = 4, n_kv_heads = 2, qk_norm = "head" },
    feed_forward = function(layer)
      if layer == 1 then
        return mlp { hidden_size = 48 }
      end
      return moe {
        num_experts = number("experts", 8),
        top_k = number("k", 3),
        hidden_size = arg.experts8 and 32 or 24, -- whole blocks
        shared_hidden_size = number("shared", 40) + (arg.experts8 and 16 or 0),
        router = router { score = arg.score, normalize = true, load_balance = 0.02, z_loss = 0.002,
          bias_gamma = number("gamma", 0), balance_over = arg.balance },
      }
    end,
    recompute = recompute { what = arg.recompute },
    lm_head = lm_head { tied = arg.tied or false },
  },
  batch = batch { micro = number("micro", 1), global = number("global", 8), documents = arg.documents },
  parallel = parallel {
    data = number("data", 1),
    expert = number("expert", 1),
    pipeline = number("pipeline", 1),
    schedule = arg.schedule,
    capacity = arg.capacity and (tonumber(arg.capacity) or arg.capacity), pair_capacity = arg.pair,
  },
  precision = precision {
    weights = arg.weights, moments = arg.moments, experts = arg.experts8, experts_dw = arg.experts8,
    scale = arg.experts8 and "floor", exempt = arg.experts8 and {},
  },
  optimizer = adamw {
    betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_norm = 1.0, average = arg.average or false,
    matrices = arg.muon and muon { row_beta = number("muon", 0), per_head = true } or nil,
    groups = arg.muon and { group { match = "*.experts.*", name = "experts" } } or nil,
  },
}
