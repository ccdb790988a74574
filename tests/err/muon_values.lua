return trainer {
  name = "muon-values",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 1, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = mlp { hidden_size = 16 },
  },
  batch = batch { micro = 1, global = 1 },
  precision = precision { weights = "bf16" },
  optimizer = adamw { matrices = muon { momentum = 1, scale = "kimi" } },
}
