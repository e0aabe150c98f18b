"""What `mlx eval` is made of."""
