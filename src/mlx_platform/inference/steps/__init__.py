"""Pipeline steps, one family a module."""
