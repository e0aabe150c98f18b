"""How often the same rows were looked at through the same gates.

A test at 95 % is wrong once in twenty times, each time that somebody looks. Trying candidates against one set
of rows until one of them passes is no test at all, so the looks are counted.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mlx_platform.core.clock import rfc3339

PREFIX = "mlx.looks."
WARN_FROM = 3


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks at one set of rows through one set of gates, with the present one.

    Attributes:
        key: identifies rows, gates and baseline.
        count: how many looks there were, with this one.
        versions: how many versions were looked at, with this one.
        mine: how often it was this version.
    """

    key: str
    count: int
    versions: int
    mine: int

    @property
    def warning(self) -> str:
        """What to say about them; empty while they are few."""
        if self.count < WARN_FROM:
            return ""
        whose = "this version alone" if self.versions == 1 else f"{self.versions:,} versions"
        return (
            f"This is look {self.count:,} at these rows through these gates, by {whose}. "
            "Each look is another chance to pass by luck: take fresh rows from time to time."
        )

    def document(self) -> dict[str, Any]:
        """The looks, JSON-ready."""
        return {"key": self.key, "count": self.count, "versions": self.versions, "this_version": self.mine}


def key_of(data: str, gates: str, baseline: str) -> str:
    """The key of rows, gates and baseline, from their digests: 16 hex digits."""
    return hashlib.sha256(json.dumps([data, gates, baseline]).encode()).hexdigest()[:16]


def count_looks(key: str, mine: Mapping[str, str], others: Iterable[Mapping[str, str]]) -> Looks:
    """Count the present look on top of those that the tags of versions tell of.

    Args:
        key: see `key_of`.
        mine: the tags of the version that is looked at.
        others: the tags of the model's other versions.
    """
    before = _read(mine.get(PREFIX + key, ""))
    counts = [count for tags in others if (count := _read(tags.get(PREFIX + key, "")))]
    return Looks(key, before + 1 + sum(counts), 1 + len(counts), before + 1)


def tag_of(looks: Looks, now: Any) -> dict[str, str]:
    """What to write down at the version, so that the next look is told from this one."""
    return {PREFIX + looks.key: json.dumps({"looks": looks.mine, "last": rfc3339(now)}, sort_keys=True)}


def _read(text: str) -> int:
    """The looks that a tag tells of; whoever writes tags can write anything."""
    try:
        count = json.loads(text)["looks"] if len(text) < 200 else 0
    except (ValueError, TypeError, KeyError):
        return 0
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 10**6 else 0
