local m = moee { top_k = 1 }
