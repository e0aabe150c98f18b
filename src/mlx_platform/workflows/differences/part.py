"""A part of two versions compared name by name: what changed, and how much did not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One name with both its values, None on the side that does not have it."""

    name: str
    before: Value
    after: Value
    note: str = ""

    @property
    def difference(self) -> float | None:
        """How much a number grew."""
        if isinstance(self.before, int | float) and isinstance(self.after, int | float):
            return self.after - self.before
        return None

    @property
    def text(self) -> str:
        """The difference for people: absolute and relative, else the note."""
        change = self.difference
        if change is None or self.note:
            return self.note
        if not self.before:
            return f"{change:+.4g}"
        return f"{change:+.4g} ({change / abs(float(self.before)):+.1%})"

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """One part: its changes, how many names are the same, and why it could not be compared, if so.

    `applies` is false where there is nothing to be compared with: an unregistered file has no metrics.
    """

    name: str
    changes: tuple[Change, ...] = ()
    same: int = 0
    problem: str = ""
    applies: bool = True

    def document(self) -> dict[str, Any]:
        return {
            "changed": [change.document() for change in self.changes],
            "same": self.same,
            "compared": not self.problem,
            "problem": self.problem,
        }


def compare(
    name: str,
    before: Mapping[str, Value],
    after: Mapping[str, Value],
    notes: Mapping[str, str] | None = None,
) -> Part:
    """Compare two tables; names in the order of the first, then those that only the second has.

    Args:
        name: of the part.
        before: one side.
        after: the other.
        notes: what to say of a name; having one makes it a change even where the values are equal.
    """
    notes = notes or {}
    names = list(dict.fromkeys((*before, *after)))
    changes = tuple(
        Change(key, before.get(key), after.get(key), notes.get(key, ""))
        for key in names
        if before.get(key) != after.get(key) or notes.get(key)
    )
    return Part(name, changes, len(names) - len(changes))
