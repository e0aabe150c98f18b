"""Counts of rows that were logged with different shares, and what they say together.

Rows of each share keep integer counts of their own, so that shards add up to the same however they were
split. A row that was logged with the share s stands for 1 / s rows. Weighted rows say less than equally many
equal ones: as much as n = (sum w)^2 / sum w^2 of them (Kish, Survey Sampling, 1965), and n takes the place of
the number of rows in every test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.drift.counts import Counts
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.tally import Tally
from mlx_platform.drift.values import Missing

_DIGITS = 4  # of a share that are told apart: sampling that adapts all the time must not fill the memory
_SCALARS = ("posinf", "neginf", "below", "above")


def share_of(sampling: float) -> float:
    """The share of requests as it is told apart: to four digits.

    Raises:
        UsageError: it is none.
    """
    if not 0 < sampling <= 1:  # neither does NaN pass
        raise UsageError(f"A sampling of {sampling} is no share of the requests.")
    return float(f"{sampling:.{_DIGITS}g}")


@dataclass(frozen=True, slots=True)
class Strata:
    """Counts by the share of requests that was logged, ascending."""

    baseline_id: str
    shares: Mapping[float, Counts]

    @classmethod
    def of(cls, counts: Counts, share: float = 1.0) -> Self:
        return cls(counts.baseline_id, {share: counts})

    @property
    def rows(self) -> int:
        return sum(counts.rows for counts in self.shares.values())

    def __add__(self, more: "Strata") -> "Strata":
        if more.baseline_id != self.baseline_id:
            raise UsageError(
                f"Counts on the bins of {more.baseline_id} cannot be added to those of {self.baseline_id}."
            )
        found = dict(self.shares)
        for share, counts in more.shares.items():
            found[share] = found[share] + counts if share in found else counts
        return Strata(self.baseline_id, dict(sorted(found.items())))

    def effective(self, profile: Profile) -> Counts:
        """The counts to judge by: of equal rows that say as much as these.

        With one share these are the counts themselves. Else they are weighted, scaled to the effective number
        of rows, and rounded to whole ones.
        """
        present = {share: counts for share, counts in self.shares.items() if counts.rows}
        if not present:
            return Counts.nothing(profile)
        if len(present) == 1:
            return next(iter(present.values()))
        weights = np.asarray([1 / share for share in present])
        sides = zip(*(counts.tallies for counts in present.values()), strict=True)
        rows = np.asarray([counts.rows for counts in present.values()])
        tallies = tuple(_weighted(tallies, weights) for tallies in sides)
        return Counts(self.baseline_id, round(_effective(weights, rows)), tallies)

    def document(self) -> list[dict[str, Any]]:
        return [{"share": share, **counts.document()} for share, counts in self.shares.items()]

    @classmethod
    def from_document(cls, baseline_id: str, document: list[Mapping[str, Any]]) -> Self:
        """Read what `document` wrote.

        Raises:
            UsageError: a share is none, or a count is negative.
        """
        found = {share_of(entry["share"]): Counts.from_document(baseline_id, entry) for entry in document}
        return cls(baseline_id, dict(sorted(found.items())))


def _effective(weights: Any, rows: Any) -> float:
    return float((weights @ rows) ** 2 / (weights**2 @ rows))


def _weighted(tallies: tuple[Tally, ...], weights: Any) -> Tally:
    """Tallies of one feature as one of equal rows."""
    rows = np.asarray([tally.rows for tally in tallies])
    if not rows.any():
        return tallies[0]
    weights = weights * (_effective(weights, rows) / (weights @ rows))
    together = tallies[0]
    for tally in tallies[1:]:
        together = together + tally
    fresh = tuple(together.fresh)
    table = np.asarray([_cells(tally, fresh) for tally in tallies], dtype=np.float64)
    whole = _rounded(weights @ table)
    bins, rest = whole[: len(together.bins)], whole[len(together.bins) :].tolist()
    scalars = {
        name: round(float(weights @ np.asarray([getattr(tally, name) for tally in tallies])))
        for name in _SCALARS
    }
    return Tally(
        bins=bins,
        missing=Missing(*rest[:3]),
        other=rest[3],
        fresh={key: count for key, count in zip(fresh, rest[4:], strict=True) if count},
        minimum=together.minimum,
        maximum=together.maximum,
        **scalars,
    )


def _cells(tally: Tally, fresh: tuple[str, ...]) -> list[int]:
    """Whatever each row of a feature is counted in exactly once."""
    missing = tally.missing
    named = [tally.fresh.get(key, 0) for key in fresh]
    other = tally.other + sum(tally.fresh.values()) - sum(named)
    return [*tally.bins.tolist(), missing.null, missing.nan, missing.invalid, other, *named]


def _rounded(amounts: Any) -> Any:
    """Whole numbers that add up as the amounts do: any bins side by side are together less than one off."""
    return np.diff(np.rint(np.cumsum(amounts)), prepend=0).astype(np.int64)
