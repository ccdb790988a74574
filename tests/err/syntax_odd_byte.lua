return trainer { name = @ }
