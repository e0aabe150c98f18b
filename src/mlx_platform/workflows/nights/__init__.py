"""The parts of a nightly check: windows that are due, what was seen in one, what is kept of it."""
