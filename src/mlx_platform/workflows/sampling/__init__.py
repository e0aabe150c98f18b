"""What `mlx sample` is made of."""
