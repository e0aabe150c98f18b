"""Several processes that serve side by side, and the one that looks after them."""
