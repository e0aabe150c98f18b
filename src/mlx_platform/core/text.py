"""Foreign text made safe to show, and friendly answers to misspelt words."""

import difflib
from collections.abc import Iterable

SHOWN_TEXT = 1024  # characters of a foreign string that anything displays


def printable(text: str, limit: int = SHOWN_TEXT) -> str:
    """Replace what could steer a terminal or reorder text (controls, bidi overrides), and cap the length."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(char if char.isprintable() or char == " " else f"\\u{ord(char):04x}" for char in text)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown word: the closest known one, else the list of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(words)}." if words else ""


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,234 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
