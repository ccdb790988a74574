-- groups that match nothing, that split a parameter's layers, that never hold
return trainer {
  name = "groups",
  model = transformer {
    vocab_size = 256, d_model = 16, n_layers = 2, sequence_length = 8,
    attention = attention { n_heads = 2 },
    feed_forward = moe { num_experts = 4, top_k = 2, hidden_size = 8 },
  },
  batch = batch { micro = 1, global = 1 },
  optimizer = adamw {
    groups = {
      group { match = "model.embed.weight", weight_decay = 0 },
      group { match = "model.layers.1.*", lr_scale = 0.5 },
      group { match = "*experts.2.*", lr_scale = 0.5 },
      group { match = "*o_proj*", lr_scale = 0.5 },
      group { match = "*self_attn.o_proj.weight", lr_scale = 0.25 },
    },
  },
}
