-- The model whose gradients model_check.c proves, in fp64: small, odd sizes, every option by -D.
local function or_default(value, default)
  if value == nil then return default end
  return value
end

return trainer {
  name = "proof",
  target = "cpu",
  model = transformer {
    vocab_size = 37,
    d_model = 12,
    n_layers = 2,
    sequence_length = 9,
    norm = rms_norm { eps = 1e-3 },
    attention = attention {
      n_heads = 6, n_kv_heads = arg.kv or 2, head_dim = 4,
      qk_norm = arg.qk or "none",
      rope = rope { theta = 100 },
    },
    feed_forward = function(layer)
      if layer == (arg.dense or 0) then
        return mlp { hidden_size = 14 }
      end
      return moe {
        num_experts = 5, top_k = arg.k or 2, hidden_size = 7, shared_hidden_size = arg.shared or 0,
        router = router {
          normalize = or_default(arg.normalize, false), load_balance = 0.3, z_loss = 0.2,
        },
      }
    end,
    lm_head = lm_head { tied = or_default(arg.tied, false) },
  },
  batch = batch { micro = 2, global = 6 },
  precision = precision { weights = "fp64" },
  optimizer = adamw {
    weight_decay = 0.1, clip_norm = arg.clip or 0.01,
    groups = {
      group { match = "*embed*", weight_decay = 0.02, lr_scale = 0.5 },
      group { match = "*gate.weight", weight_decay = 0 },
    },
  },
}
