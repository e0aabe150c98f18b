"""The anchor of a journal: a tag on the model itself that says how far its journal had come.

A chain of hashes shows what was changed inside of it, not what was cut off at its end. So the last number is
written down a second time, on the model that the journal is about, with a digest of every row up to it. An
anchor may lag behind its journal, as whoever appends may die before writing it. It is never ahead.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping

from mlx_platform.core.values import frozen

ANCHOR_TAG = "mlx.journal.head"
_PATTERN = re.compile(r"([1-9][0-9]{0,17}) ([0-9a-f]{64})")


@frozen
class Anchor:
    """`digest` covers the text of every row from the first to `number`."""

    number: int
    digest: str

    def encode(self) -> str:
        """The text of the tag."""
        return f"{self.number} {self.digest}"


def parse_anchor(text: str) -> Anchor | None:
    """Read the tag back; None when it is none."""
    match = _PATTERN.fullmatch(text)
    return Anchor(int(match[1]), match[2]) if match else None


def trail(rows: Iterable[tuple[int, str]]) -> dict[int, str]:
    """The digest at every row, of all rows up to it.

    Args:
        rows: number and text, in the order of the numbers.
    """
    digests: dict[int, str] = {}
    digest = ""
    for number, text in rows:
        digest = hashlib.sha256(f"{digest} {number} {text}".encode(errors="replace")).hexdigest()
        digests[number] = digest
    return digests


def anchor_problem(text: str, digests: Mapping[int, str]) -> str:
    """What an anchor says against a journal; empty when it fits, lags behind, or is not there.

    Args:
        text: the tag, empty when there is none.
        digests: the journal's own, by row; see `trail`.
    """
    if not text:
        return ""
    anchor, last = parse_anchor(text), max(digests, default=0)
    if anchor is None:
        return "its anchor cannot be read"
    if not last:
        return f"its anchor names event {anchor.number}, and there is no journal"
    if anchor.number > last:
        return f"its anchor names event {anchor.number}, and the last one is {last}"
    if digests.get(anchor.number) != anchor.digest:
        return f"the events up to {anchor.number} are not those that its anchor names"
    return ""
