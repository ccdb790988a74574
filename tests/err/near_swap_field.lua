-- flags: -D expret=2
return trainer {
  name = "t",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 2, sequence_lenght = 8,
    attention = attention { n_heads = arg.expert or 2, n_heads_kv = 1 },
    feed_forward = mlp { hidden_size = 8, top_k = 1 },
  },
  bacth = batch { micro = 1, global = 8 },
}
