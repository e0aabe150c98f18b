"""Answers that were given before: exact, alike in meaning, or prepared half way; always bounded."""
