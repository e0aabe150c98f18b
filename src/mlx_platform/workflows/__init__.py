"""One module per command: resolve, load, compute, record, return a result."""
