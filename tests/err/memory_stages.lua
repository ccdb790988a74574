-- a trillion parameters over too few ranks
return trainer {
  name = "ultra",
  target = "cuda:sm_90a",
  model = transformer {
    vocab_size = 100352, d_model = 6144, n_layers = 63, sequence_length = 8192,
    attention = attention { n_heads = 64, n_kv_heads = 32, head_dim = 128, qk_norm = "head" },
    feed_forward = function(layer)
      if layer < 2 then return mlp { hidden_size = 40960 } end
      return moe { num_experts = 128, top_k = 4, hidden_size = 8192, shared_hidden_size = 8192 }
    end,
  },
  batch = batch { micro = 1, global = 8192 },
  parallel = parallel { data = 8, expert = 8, pipeline = 8, capacity = 1.25 },
}
