for i = 1, 2 do goto nowhere end
