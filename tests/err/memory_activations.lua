-- flags: -D micro=64
-- a smaller microbatch would do; the device's memory is the target's
return trainer {
  name = "wide",
  target = "cuda:sm_90a",
  model = transformer {
    vocab_size = 50304, d_model = 2048, n_layers = 16, sequence_length = 4096,
    attention = attention { n_heads = 16 },
    feed_forward = mlp { hidden_size = 8192 },
  },
  batch = batch { micro = arg.micro, global = 1024 },
}
