"""What `mlx dataset` is made of."""
