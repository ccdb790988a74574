-- A model that learns text byte by byte on a laptop: four layers, the first one dense, the others
-- with eight experts of which every token visits two, and a shared expert that it always visits.

return trainer {
  name = "tiny",
  target = "cpu",

  model = transformer {
    vocab_size = 256, -- bytes
    d_model = 128,
    n_layers = 4,
    sequence_length = 128,
    attention = attention { n_heads = 4, n_kv_heads = 2, qk_norm = "head" },
    feed_forward = function(layer)
      if layer == 0 then
        return mlp { hidden_size = 384 }
      end
      return moe {
        num_experts = arg.experts or 8,
        top_k = 2,
        hidden_size = 128,
        shared_hidden_size = 128,
        router = router { normalize = true, load_balance = 0.01, z_loss = 0.001 },
      }
    end,
    lm_head = lm_head { tied = true },
  },

  batch = batch { micro = arg.micro or 8, global = 8 },
  parallel = parallel {
    data = arg.data or 1,
    expert = arg.expert or 1,
    pipeline = arg.pipeline or 1,
    schedule = arg.pipeline and "v", -- the head is tied, so both ends of the model are on one rank
  },
  precision = precision { weights = arg.weights }, -- "bf16" or "fp64", where none is given fp32
  optimizer = adamw { betas = { 0.9, 0.95 }, weight_decay = 0.1, clip_norm = 1.0 },
}
