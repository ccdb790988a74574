-- all layers alike, full QK norm, an untied head, groups
return trainer {
  name = "moe",
  model = transformer {
    vocab_size = 32, d_model = 8, n_layers = 3, sequence_length = 4,
    attention = attention { n_heads = 2, qk_norm = "full" },
    feed_forward = moe { num_experts = 4, top_k = 2, hidden_size = 6 },
  },
  batch = batch { micro = 2, global = 4 },
  optimizer = adamw { groups = { group { match = "*gate.weight", lr_scale = 0.5 } } },
}
