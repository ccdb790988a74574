local o = rope { theta = 0.5 }
return trainer {
  nam = "t",
  target = "gpu",
  model = transformer {
    vocab_size = "64", d_model = 15, n_layers = 2.5, sequence_length = 8,
    attention = attention { n_heads = 4, rope = o, qk_norm = "both" },
    feed_forward = moe { num_experts = 6, top_k = 7, hidden_size = 0, router = {} },
    lm_head = lm_head { tied = "no" },
  },
  batch = batch { micro = 3, global = 8 },
  parallel = parallel { data = 2, expert = 4 },
  optimizer = adamw { eps = 0, betas = { 1, 2 }, weight_decay = {} },
}
