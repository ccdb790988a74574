local x = function()
  -- nothing closes it
