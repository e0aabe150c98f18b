"""Metrics, intervals, paired comparison and gates."""
