-- The model whose products in 8 bits eight_check.c compares with naive ones: a layer, whose router has no gradient,
-- since the weight of the one expert that a token is sent to is 1.
return trainer {
  name = "eight",
  model = transformer {
    vocab_size = 64, d_model = 128, n_layers = 1, sequence_length = 16,
    attention = attention { n_heads = 2 },
    feed_forward = moe {
      num_experts = 4, top_k = 1, hidden_size = 256, shared_hidden_size = 128,
      router = router { score = "topk_softmax", load_balance = 0, z_loss = 0 },
    },
    recompute = recompute { what = arg.recompute or "none" },
  },
  batch = batch { micro = 1, global = 2 },
  precision = precision {
    experts = arg.experts or "mxfp8", experts_dx = arg.dx, experts_dw = arg.dw, scale = arg.scale, exempt = {},
  },
}
