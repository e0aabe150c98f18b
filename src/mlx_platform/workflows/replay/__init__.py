"""What `mlx consistency` is made of."""
