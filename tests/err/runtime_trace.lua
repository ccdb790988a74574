local function width(cfg)
  return cfg.d_model * 2
end
local function model(cfg)
  local w = width(cfg)
  return w
end
return model {
  d_model = "wide",
}
