return trainer {
  name = "muon-vector",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 1, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = mlp { hidden_size = 16 },
  },
  batch = batch { micro = 1, global = 1 },
  optimizer = adamw {
    matrices = muon {},
    groups = { group { match = "*layernorm*", update = "muon" } },
  },
}
