"""Profiles, bins, scores and verdicts: has the traffic moved away from the baseline?"""
