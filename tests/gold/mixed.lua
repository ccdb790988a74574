-- two kinds of MoE layer and a dense one in turn, shared expert, grouped-query attention with windows,
-- recomputation by layer, norms on both sides, a tied head, experts by lot or with a bias, fp64
return trainer {
  name = "mixed",
  precision = precision { weights = "fp64" },
  model = transformer {
    vocab_size = 32, d_model = 8, n_layers = 5, sequence_length = 4,
    norm_placement = "peri",
    attention = function(layer)
      return attention {
        n_heads = 4, n_kv_heads = 2, head_dim = 4, qk_norm = "head",
        window = layer % 2 == 1 and 3 or 0,
        rope = layer % 2 == 1 and rope { theta = 100 } or nope {},
      }
    end,
    feed_forward = function(layer)
      if layer % 2 == 0 then return mlp { hidden_size = 12 } end
      return moe {
        num_experts = 4 * layer, top_k = layer, hidden_size = 6, shared_hidden_size = 4,
        router = layer == 1 and router { routing = "random" } or router { normalize = true, bias_gamma = 0.001 },
      }
    end,
    recompute = function(layer) return recompute { what = layer == 3 and "block" or "none" } end,
    lm_head = lm_head { tied = true, z_loss = 1e-4 },
  },
  batch = batch { micro = 1, global = 2 },
}
