-- more experts than its groups hold: a multiple of the experts is proposed that gives enough in the chosen groups
return trainer {
  name = "t",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 1, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = moe { num_experts = 4, top_k = 5, hidden_size = 8, router = router { n_groups = 2, top_groups = 1 } },
  },
  batch = batch { micro = 1, global = 1 },
}
