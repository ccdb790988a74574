return trainer {
  name = "muon-group",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 1, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = mlp { hidden_size = 16 },
  },
  batch = batch { micro = 1, global = 1 },
  optimizer = adamw {
    expert_lr_scale = 0.5,
    groups = {
      group { match = "*q_proj*", update = "muon" },
      group { match = "*k_proj*" },
    },
  },
}
