return trainer {}
