"""Integer counts of one feature on the bins of its profile; adding them up in any order gives the same."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.drift.values import Missing

FRESH_KEPT = 10_000
Bins = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """What rows hold.

    Attributes:
        bins: of present values; infinities are in the outermost bins of a numeric feature.
        missing: rows without a usable value.
        posinf: how many of the values are infinite.
        neginf: how many are minus infinity.
        below: values below the baseline's smallest, wherever they are counted.
        above: values above its largest.
        other: values of categories that are not told apart.
        fresh: occurrences by key of categories that the baseline does not name.
        minimum: of finite values; None when there is none.
        maximum: the same.
    """

    bins: Bins
    missing: Missing = field(default_factory=Missing)
    posinf: int = 0
    neginf: int = 0
    below: int = 0
    above: int = 0
    other: int = 0
    fresh: Mapping[str, int] = field(default_factory=dict)
    minimum: float | int | None = None
    maximum: float | int | None = None

    @property
    def present(self) -> int:
        """Rows with a usable value."""
        return int(self.bins.sum()) + self.other + sum(self.fresh.values())

    @property
    def missing_rows(self) -> int:
        missing = self.missing
        return missing.null + missing.nan + missing.invalid

    @property
    def rows(self) -> int:
        return self.present + self.missing_rows

    def __add__(self, more: "Tally") -> "Tally":
        if len(self.bins) != len(more.bins):
            raise UsageError("Counts over different bins cannot be added.")
        fresh, dropped = keep_fresh(Counter(self.fresh) + Counter(more.fresh))
        return Tally(
            bins=self.bins + more.bins,
            missing=Missing(
                self.missing.null + more.missing.null,
                self.missing.nan + more.missing.nan,
                self.missing.invalid + more.missing.invalid,
            ),
            posinf=self.posinf + more.posinf,
            neginf=self.neginf + more.neginf,
            below=self.below + more.below,
            above=self.above + more.above,
            other=self.other + more.other + dropped,
            fresh=fresh,
            minimum=_pick(min, self.minimum, more.minimum),
            maximum=_pick(max, self.maximum, more.maximum),
        )

    def document(self) -> dict[str, Any]:
        return {
            "bins": self.bins.tolist(),
            "null": self.missing.null,
            "nan": self.missing.nan,
            "invalid": self.missing.invalid,
            "posinf": self.posinf,
            "neginf": self.neginf,
            "below": self.below,
            "above": self.above,
            "other": self.other,
            "fresh": dict(self.fresh),
            "minimum": self.minimum,
            "maximum": self.maximum,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote.

        Raises:
            UsageError: a count is negative.
        """
        whole = {key: int(document[key]) for key in ("posinf", "neginf", "below", "above", "other")}
        missing = Missing(int(document["null"]), int(document["nan"]), int(document["invalid"]))
        bins = np.asarray([int(count) for count in document["bins"]], dtype=np.int64)
        fresh = {str(key): int(count) for key, count in document["fresh"].items()}
        tally = cls(
            bins=bins,
            missing=missing,
            fresh=fresh,
            minimum=document["minimum"],
            maximum=document["maximum"],
            **whole,
        )
        every = [*whole.values(), missing.null, missing.nan, missing.invalid, *fresh.values(), *bins.tolist()]
        if min(every) < 0:
            raise UsageError("A profile holds a negative count.")
        return tally

    @classmethod
    def nothing(cls, bins: int) -> Self:
        """No row at all, over so many bins."""
        return cls(bins=np.zeros(bins, dtype=np.int64))


def keep_fresh(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The fresh categories to keep by name, and how many values the others hold."""
    # A key that is among the smallest hashes of everything is so in every shard it occurs in: the kept counts
    # are exact, and the same however the rows were split. Keeping the most frequent would not be.
    if len(counts) <= FRESH_KEPT:
        return dict(counts), 0
    kept = sorted(counts, key=_hash)[:FRESH_KEPT]
    chosen = {key: counts[key] for key in kept}
    return chosen, sum(counts.values()) - sum(chosen.values())


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _pick(choose: Any, one: float | None, other: float | None) -> float | int | None:
    present = [value for value in (one, other) if value is not None]
    return choose(present) if present else None
