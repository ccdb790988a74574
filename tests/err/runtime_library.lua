local n = table.concat({ {} }, ",")
