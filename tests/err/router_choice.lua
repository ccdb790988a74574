-- options of a router that exclude each other
local function model(r)
  return transformer {
    vocab_size = 256, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = function() return moe { num_experts = 8, top_k = 2, hidden_size = 8, router = r() } end,
  }
end
local one = batch { micro = 1, global = 1 }
return {
  trainer { name = "a", batch = one, model = model(function() return router { bias_gamma = -0.001 } end) },
  trainer { name = "b", batch = one, model = model(function()
    return router { bias_gamma = 0.001, score = "topk_softmax", n_groups = 4, top_groups = 2 }
  end) },
  trainer { name = "c", batch = one, model = model(function()
    return router { bias_gamma = 0.001, routing = "random" }
  end) },
  trainer { name = "d", batch = one, model = model(function()
    return router { routing = "uniform", n_groups = 4, top_groups = 2 }
  end) },
  trainer { name = "e", batch = one, model = model(function() return router { routing = "rand" } end) },
  trainer { name = "fine", batch = one, model = model(function()
    return router { bias_gamma = 0.001, score = "topk_softmax", n_groups = 4, top_groups = 2 + 2 }
  end) },
}
