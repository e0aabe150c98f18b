"""The parts of `mlx drift`: where a baseline comes from, how a window is counted, how the answer is drawn."""
