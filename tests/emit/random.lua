-- A random valid description for each arg.seed; with arg.corrupt = 1 .. n one value is made wrong.
local state = arg.seed * 2654435761 % 4294967296 + 1
local function random(n) -- 1 .. n
  state = (state * 1103515245 + 12345) % 2147483648
  return state // 65536 % n + 1
end
local function pick(list) return list[random(#list)] end
local wrong = { [arg.corrupt or 0] = true }

-- one in three has experts in 8 bits, whose sizes are of whole blocks
local block = arg.seed % 3 == 0 and (arg.seed % 2 == 0 and 32 or 128)
local kv = random(3)
local heads = kv * random(3)
local head_dim = 2 * random(6)
local layers = random(5)
local kinds, routed = {}, {}
for i = 1, random(3) do
  if random(3) == 1 then
    kinds[i] = mlp {
      hidden_size = wrong[1] and 0 or random(20),
      activation = pick { "swiglu", "geglu", "relu2" },
    }
  else
    local groups = random(3)
    local each = random(4)
    local experts, top_groups = groups * each, random(groups)
    local routing = pick { "learned", "learned", "random", top_groups == groups and "uniform" or "learned" }
    local score = pick { "softmax", "sigmoid", "topk_softmax" }
    kinds[i] = moe {
      num_experts = experts,
      top_k = wrong[2] and experts + 1 or random(top_groups * each),
      hidden_size = wrong[3] and "8" or block or random(12),
      activation = pick { "swiglu", "geglu", "relu2" },
      shared_hidden_size = wrong[4] and -1 or pick { 0, 0, block or random(9) },
      router = router {
        score = score,
        normalize = random(2) == 1,
        weight_scale = pick { 1, 2.5 },
        n_groups = groups,
        top_groups = top_groups,
        balance_over = pick { "batch", "sequence" },
        load_balance = pick { 0, 0.01, 0.5 },
        z_loss = pick { 0, 0.001 },
        routing = routing,
        bias_gamma = routing == "learned" and (score ~= "topk_softmax" or top_groups == groups) and
          pick { 0, 0.001 } or 0,
      },
    }
    routed[kinds[i]] = true
  end
end
local order, some = {}, false
for i = 1, layers do
  order[i] = pick(kinds)
  some = some or routed[order[i]]
end
local micro = random(3)
local by_layer = {}
for i = 1, layers do
  by_layer[i] = attention {
    n_heads = heads,
    n_kv_heads = wrong[8] and heads + 1 or kv,
    head_dim = wrong[9] and head_dim + 1 or head_dim,
    qk_norm = wrong[10] and "both" or pick { "none", "full", "head" },
    bias = pick { "none", "qkv", "all" },
    window = pick { 0, random(20) },
    rope = pick {
      rope {}, nope {}, rope { theta = 500, scaling = linear_scaling { factor = 2 } },
      rope { scaling = yarn { factor = 4, original_length = 8 } },
      rope { scaling = llama3 { factor = 8, original_length = 8 } },
    },
  }
end
local kept = { recompute {}, recompute { what = "cheap" }, recompute { what = "experts" },
  recompute { what = "block" } }

local weights = pick { "fp32", "bf16", not block and "fp64" or "bf16" }
local eight = block and some and (block == 32 and "mxfp8" or pick { "mxfp8", "fp8_block" })

return trainer {
  name = "random-" .. arg.seed,
  target = wrong[5] and "tpu" or "cpu",
  model = transformer {
    vocab_size = random(60) + 1,
    d_model = wrong[6] and 2.5 or block or random(24),
    n_layers = wrong[7] and layers + 1 or layers,
    sequence_length = random(17),
    norm_placement = pick { "pre", "post", "peri" },
    embedding = embedding { scale = pick { 1, 4.5 }, norm = random(2) == 1 },
    attention = random(2) == 1 and by_layer or by_layer[1],
    feed_forward = order,
    recompute = function() return pick(kept) end,
    lm_head = lm_head { tied = random(2) == 1, z_loss = pick { 0, 1e-4 } },
  },
  batch = batch {
    micro = micro, documents = pick { "ignore", "mask" },
    global = wrong[11] and micro * 2 + (micro > 1 and 1 or 1 / 2) or micro * random(3),
  },
  precision = precision {
    weights = wrong[12] and "fp16" or weights,
    moments = weights == "bf16" and pick { "fp32", "bf16" } or nil,
    experts = eight or nil,
    experts_dx = eight and pick { weights, eight } or nil,
    experts_dw = eight and pick { weights, eight } or nil,
    scale = eight == "mxfp8" and pick { "rceil", "floor" } or nil,
    exempt = eight and {} or nil,
  },
  parallel = wrong[13] and { data = 1 } or nil,
  optimizer = adamw {
    betas = wrong[14] and { 0.9 } or { 0.9, 0.95 },
    clip_norm = pick { 0, 1 },
    groups = wrong[15] and { group { match = "nothing", lr_scale = 1 } } or {},
  },
}
