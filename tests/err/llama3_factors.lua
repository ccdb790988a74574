return trainer {
  name = "t",
  model = transformer {
    vocab_size = 64, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention {
      n_heads = 2,
      rope = rope { scaling = llama3 { factor = 8, original_length = 4, low_freq_factor = 4, high_freq_factor = 4 } },
    },
    feed_forward = mlp { hidden_size = 8 },
  },
  batch = batch { micro = 1, global = 1 },
}
