"""What a model runs on, and what happens when that fails."""
