-- two kinds of MoE layer and a dense one in turn, shared expert, grouped-query attention, a tied head, fp64
return trainer {
  name = "mixed",
  precision = precision { weights = "fp64" },
  model = transformer {
    vocab_size = 32, d_model = 8, n_layers = 5, sequence_length = 4,
    attention = attention { n_heads = 4, n_kv_heads = 2, head_dim = 4, qk_norm = "head" },
    feed_forward = function(layer)
      if layer % 2 == 0 then return mlp { hidden_size = 12 } end
      return moe {
        num_experts = 4 * layer, top_k = layer, hidden_size = 6, shared_hidden_size = 4,
        router = router { normalize = true },
      }
    end,
    lm_head = lm_head { tied = true },
  },
  batch = batch { micro = 1, global = 2 },
}
