-- A small model on a GPU for the search over layouts: what a microbatch saves is most of its memory.
return trainer {
  name = "search",
  target = "cuda:h200",
  device_memory = arg.memory,
  model = transformer {
    vocab_size = 512, d_model = 64, n_layers = 4, sequence_length = 2048,
    attention = attention { n_heads = 4, n_kv_heads = 2 },
    feed_forward = function(layer)
      if layer == 0 then return mlp { hidden_size = 128 } end
      return moe { num_experts = 12, top_k = 2, hidden_size = 64, shared_hidden_size = 64 }
    end,
  },
  batch = batch { micro = 1, global = 24 },
}
