local t = trainer
