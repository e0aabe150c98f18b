"""The most frequent of more categories than fit into memory.

Misra and Gries (Science of Computer Programming 2, 1982), in pieces: when there are too many keys, all
counts are lowered by what the first of the superfluous has. A count is too low by at most `error`, and a key
that occurs more often than that is certain to be known.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

KEYS = 32_768


@dataclass(slots=True)
class Frequent:
    """Counts of keys; exact as long as `error` is 0."""

    keys: int = KEYS
    counts: Counter[str] = field(default_factory=Counter)
    error: int = 0

    def add(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)
        if len(self.counts) > 2 * self.keys:
            cost = sorted(self.counts.values(), reverse=True)[self.keys]
            self.counts = Counter({key: count - cost for key, count in self.counts.items() if count > cost})
            self.error += cost

    def ranked(self, most: int) -> list[str]:
        """The most frequent keys, ties in the order of keys."""
        order = sorted(self.counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return [key for key, _ in order[:most]]
