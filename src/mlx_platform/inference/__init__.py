"""The sealed package at work: safe loading, pipeline steps, sessions, devices."""
