"""Versions, aliases and their history on top of MLflow."""
