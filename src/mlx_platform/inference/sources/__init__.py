"""Data files read batch by batch, one module per format."""
