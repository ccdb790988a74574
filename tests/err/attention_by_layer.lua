-- attention by layer: the rules hold for each kind; ropes and scalings by their objects
return trainer {
  name = "by-layer",
  model = transformer {
    vocab_size = 256, d_model = 16, n_layers = 3, sequence_length = 8,
    norm_placement = "sandwich",
    attention = function(layer)
      if layer == 0 then return attention { n_heads = 3 } end
      if layer == 1 then return attention { n_heads = 4, n_kv_heads = 3, rope = nope {} } end
      return attention { n_heads = 4, rope = rope { scaling = yarn { factor = 0.5 } }, window = -1 }
    end,
    feed_forward = mlp { hidden_size = 8, activation = "relu" },
    recompute = recompute { what = "attention" },
  },
  batch = batch { micro = 1, global = 1 },
}
