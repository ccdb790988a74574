-- A model that takes milliseconds a step, with every kind of layer; with -D hf=true one that transformers knows too.
local hf = arg.hf
return trainer {
  name = "small",
  device_memory = arg.memory, -- GiB
  model = transformer {
    vocab_size = 256, d_model = 48, n_layers = 3, sequence_length = 33,
    attention = attention { n_heads = 4, n_kv_heads = 2, head_dim = 10, qk_norm = hf and "head" or "full" },
    feed_forward = function(layer)
      if layer == 1 then return mlp { hidden_size = 50 } end
      return moe {
        num_experts = 6, top_k = 2, hidden_size = 20, shared_hidden_size = hf and 0 or 14,
        router = router { bias_gamma = arg.gamma or 0, routing = arg.routing or "learned" },
      }
    end,
    recompute = recompute { what = arg.recompute or "none" },
  },
  batch = batch { micro = 2, global = 6 },
  precision = precision { weights = arg.real or "fp32", moments = arg.moments },
  optimizer = adamw { betas = { 0.9, arg.beta2 or 0.95 } },
}
