-- fields that mean nothing beside what the description says itself; those of "sweep" depend on what it is given
local function model(r, pipeline)
  return transformer {
    vocab_size = 64, d_model = 16, n_layers = 4, sequence_length = 8, attention = attention { n_heads = 2 },
    feed_forward = moe { num_experts = 8, top_k = 2, hidden_size = 8, router = r },
  }
end
local one = batch { micro = 1, global = 8 }
local n, zero = arg.n or 1, arg.zero or 0
return {
  trainer { name = "a", batch = one, model = model(router {}), parallel = parallel { schedule = "v" } },
  trainer { name = "b", batch = one, model = model(router {}), parallel = parallel { pipeline = 1, split = { 4 } } },
  trainer { name = "c", batch = one, model = model(router {}), parallel = parallel { data = 2, capacity = 1.25, pair_capacity = 2 } },
  trainer { name = "d", batch = one, model = model(router { load_balance = 0, balance_over = "sequence" }) },
  trainer { name = "e", batch = one, model = model(router { score = "topk_softmax", normalize = true }) },
  trainer { name = "f", batch = one, model = model(router { n_groups = 4 }) },
  trainer {
    name = "g", batch = one, model = model(router {}),
    optimizer = adamw { groups = { group { match = "*norm*", lr_scale = 0, weight_decay = 0.1 } } },
  },
  trainer { -- what says nothing anyway
    name = "h", batch = one, model = model(router { normalize = false, n_groups = 1, balance_over = "batch" }),
    parallel = parallel { schedule = "1f1b", chunks = 1, capacity = "worst" },
  },
  trainer {
    name = "sweep", batch = one,
    model = model(router { load_balance = zero, balance_over = "global", n_groups = 4, top_groups = 4 * n }),
    parallel = parallel { data = 2, expert = n, pipeline = n, schedule = "v", capacity = 1.25, split = { 2, 2 } },
    optimizer = adamw { groups = { group { match = "*norm*", lr_scale = zero, weight_decay = 0.1 } } },
  },
}
