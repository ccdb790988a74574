-- Olmo 3 7B (Olmo team 2025), dense: 7.3 billion parameters. Three layers of four see a window of
-- 4096 tokens, the fourth sees all before it. The published model's shape in its pre-training at
-- 8192 tokens; the batch is that of its pre-training, 4 Mi tokens a step, the layout an example.

return trainer {
  name = "olmo3-7b",
  target = "cuda:sm_90a",

  model = transformer {
    vocab_size = 100278,
    d_model = 4096,
    n_layers = 32,
    sequence_length = 8192,
    norm = rms_norm { eps = 1e-6 },
    norm_placement = "post",
    attention = function(layer)
      return attention {
        n_heads = 32,
        qk_norm = "full",
        window = layer % 4 == 3 and 0 or 4096,
        rope = rope { theta = 500000 },
      }
    end,
    feed_forward = mlp { hidden_size = 11008 },
    lm_head = lm_head { tied = false, z_loss = 1e-5 },
    init = normal { std = 0.02 },
  },

  batch = batch { micro = arg.micro or 1, global = 512 },
  parallel = parallel { data = arg.data or 8 },
  optimizer = adamw {
    betas = { 0.9, 0.95 },
    weight_decay = 0.1,
    clip_norm = 1.0,
    groups = { group { match = "model.embed_tokens.weight", weight_decay = 0 } },
  },
}
