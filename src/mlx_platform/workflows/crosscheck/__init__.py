"""`mlx consistency --check`: the same requests answered in two ways that should make no difference."""
