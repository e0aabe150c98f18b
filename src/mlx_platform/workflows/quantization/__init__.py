"""What `mlx quantize` reads, judges and shows."""
