"""Rollouts as commands see them: starting, watching, deciding, telling, rehearsing."""
