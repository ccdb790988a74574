return trainer {
  name = "rows", target = "cpu",
  model = transformer { vocab_size = 64, d_model = 32, n_layers = 1, sequence_length = 16,
    attention = attention { n_heads = 2 }, feed_forward = moe { num_experts = 4, top_k = 1, hidden_size = 32 } },
  batch = batch { micro = 2, global = 2 },
  generation = generation { batch = 33, prompt = 40 },
  optimizer = adamw {},
}
