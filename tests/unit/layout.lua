-- A small model whose layout is all arguments.
return trainer {
  name = "ranks",
  target = "cpu",
  model = transformer {
    vocab_size = arg.vocab or 32, d_model = 16, n_layers = arg.layers or 8, sequence_length = 8,
    attention = attention { n_heads = 2, n_kv_heads = 1 },
    feed_forward = function(layer)
      if layer == 0 then return mlp { hidden_size = 16 } end
      return moe { num_experts = 8, top_k = 2, hidden_size = 8, shared_hidden_size = 8 }
    end,
  },
  batch = batch { micro = 1, global = (arg.microbatches or 8) * (arg.data or 1) },
  parallel = parallel {
    data = arg.data, expert = arg.expert, pipeline = arg.pipeline, schedule = arg.schedule, chunks = arg.chunks,
    capacity = arg.capacity,
  },
  optimizer = adamw { matrices = arg.muon and muon {} or nil },
}
