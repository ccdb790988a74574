local m = moe { num_experts = 2, top_k = 1, hidden_size = 1 }
return m.top_k
