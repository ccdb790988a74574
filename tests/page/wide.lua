-- 512 ranks and 128 layers: what a page of a plan must stay fluid with. -D schedule=interleaved -D chunks=2, -D data=32
return trainer {
  name = arg.name or "wide",
  target = "cuda:sm_100a",
  model = transformer {
    vocab_size = 100352,
    d_model = 4096,
    n_layers = 128,
    sequence_length = 8192,
    attention = attention { n_heads = 32, n_kv_heads = 8, head_dim = 128, qk_norm = "head" },
    feed_forward = function(layer)
      if layer < 2 then
        return mlp { hidden_size = 16384 }
      end
      return moe {
        num_experts = 128,
        top_k = 4,
        hidden_size = 2048,
        shared_hidden_size = 2048,
        router = router { normalize = true },
      }
    end,
    recompute = recompute { what = "block" },
  },
  batch = batch { micro = 1, global = 4096 },
  parallel = parallel {
    data = arg.data or 64,
    expert = 16,
    pipeline = 8,
    capacity = 1.25,
    schedule = arg.schedule,
    chunks = arg.chunks,
  },
  optimizer = adamw { betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_norm = 1.0 },
}
