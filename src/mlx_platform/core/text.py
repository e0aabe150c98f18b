"""Foreign text made safe to show, and friendly answers to misspelt words."""

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

SHOWN_TEXT = 1024  # characters of a foreign string that anything displays
_MOST_COMPARED = 2000
_LONGEST_COMPARED = 128
_BARS = "▁▂▃▄▅▆▇█"


def printable(text: str, limit: int = SHOWN_TEXT) -> str:
    """Replace what could steer a terminal or reorder text (controls, bidi overrides), and cap the length."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return "".join(char if char.isprintable() or char == " " else f"\\u{ord(char):04x}" for char in text)


def first_line(error: BaseException, limit: int = 300) -> str:
    """The first line of an error's message, without its full stop; its type when it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0].rstrip(".") if lines else type(error).__name__, limit)


def listed(names: Sequence[str], most: int = 30, *, width: int = 80) -> str:
    """Foreign names in a sentence: `a, b and 3 more`, each cut at `width` characters."""
    shown = ", ".join(printable(name, width) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown word: the closest known one, else the list of them."""
    # Both may come from a request: comparing a megabyte with a million words takes minutes.
    words = sorted(islice(known, _MOST_COMPARED))
    close = difflib.get_close_matches(word[:_LONGEST_COMPARED], words, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {listed(words)}." if words else ""


def spark(shares: Iterable[float]) -> str:
    """Numbers from 0 to 1 as bars of a line of text; a gap for what is no such number."""
    return "".join(
        _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))] if 0 <= share <= 1 else " " for share in shares
    )


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,234 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
