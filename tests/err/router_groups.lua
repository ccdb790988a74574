-- groups of experts: divisibility, range, too few experts in the chosen groups
local function model(r, k)
  return transformer {
    vocab_size = 256, d_model = 16, n_layers = 1, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = moe { num_experts = 8, top_k = k, hidden_size = 8, router = r },
  }
end
return {
  trainer { name = "a", batch = batch { micro = 1, global = 1 }, model = model(router { n_groups = 3, top_groups = 2 }, 2) },
  trainer { name = "b", batch = batch { micro = 1, global = 1 }, model = model(router { n_groups = 4, top_groups = 5 }, 2) },
  trainer { name = "c", batch = batch { micro = 1, global = 1 }, model = model(router { n_groups = 4, top_groups = 1 }, 3) },
}
