-- Llama 3 8B (Grattafiori et al. 2024), dense: 8.03 billion parameters. The published model's
-- shape; the batch and the layout are examples. -D long=true takes Llama 3.1's positions.

return trainer {
  name = "llama3-8b",
  target = "cuda:sm_90a",

  model = transformer {
    vocab_size = 128256,
    d_model = 4096,
    n_layers = 32,
    sequence_length = 8192,
    norm = rms_norm { eps = 1e-5 },
    attention = attention {
      n_heads = 32,
      n_kv_heads = 8,
      rope = rope {
        theta = 500000,
        scaling = arg.long and llama3 { factor = 8, original_length = 8192 } or unscaled {},
      },
    },
    feed_forward = mlp { hidden_size = 14336 },
    lm_head = lm_head { tied = false },
    init = normal { std = 0.02 },
  },

  batch = batch { micro = arg.micro or 1, global = 512 },
  parallel = parallel { data = arg.data or 8 },
  optimizer = adamw { betas = { 0.9, 0.95 }, eps = 1e-8, weight_decay = 0.1, clip_norm = 1.0 },
}
