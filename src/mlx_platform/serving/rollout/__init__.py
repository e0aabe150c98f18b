"""Rollouts: a new version gets traffic step by step, is judged, and goes back by itself where it fails."""
