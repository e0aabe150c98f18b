"""A running server seen from outside: what its metrics say, and what happened between two looks at them."""
