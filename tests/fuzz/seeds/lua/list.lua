#!olmogen
--[==[ a long
 comment ]==] local width <const> = 16 -- to the end
local function layer(i)
	if i % 2 == 0 then return mlp { hidden_size = width * 4 } end
	local r = router { ["load_balance"] = 1e-2; z_loss = .5 }
	return moe({ num_experts = arg.experts or 0x8, top_k = 2, hidden_size = width // 2, router = r })
end
local list = {}
for i = 1, 2 do
	list[i] = trainer {
		name = "t-" .. i .. [[_x]],
		target = 'cpu',
		model = transformer {
			vocab_size = 64, d_model = width, n_layers = 3, sequence_length = 8,
			norm = rms_norm { eps = 1e-5 }, attention = attention { n_heads = 2, qk_norm = "full" },
			feed_forward = i == 1 and layer or { layer(0), layer(1), layer(2) },
		},
		batch = batch { micro = 1, global = 8 }, parallel = parallel { data = 2, expert = 2 },
		optimizer = adamw { betas = { 0.9, 0.95 }, groups = { group { match = "*a", lr_scale = 2 } } },
	}
end
return list
