"""A profile of rows that do not fit into memory: one pass finds the bins, a second counts on them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.drift import bins, values
from mlx_platform.drift.counts import Key
from mlx_platform.drift.feature import OUTPUT_PREFIX, FeatureProfile, tally_column
from mlx_platform.drift.frequent import KEYS, Frequent
from mlx_platform.drift.profile import (
    CATEGORIES_KEPT,
    Profile,
    numeric_bins,
    profile_categories,
    profile_numbers,
    scale_of,
)
from mlx_platform.drift.summary import Summary
from mlx_platform.drift.tally import Tally
from mlx_platform.drift.values import Categories, Column, Missing, Numbers

EXACT = 262_144
"""Numbers of a feature that are kept, and profiled exactly."""

Rows = Callable[[Collection[Key] | None], Iterable[Mapping[Key, Column]]]
"""Reads all rows once more, batch by batch, each some features of some rows; of these features, or of all."""


@dataclass(frozen=True, slots=True)
class Built:
    """A profile, and what it does not know exactly.

    Attributes:
        profile: of all rows.
        thinned: numeric features whose edges are quantiles to about 0.1 % of the rows; counts are exact.
        tails: categorical features with more categories than are kept by name, and how often a
            category can occur at most without being known.
    """

    profile: Profile
    thinned: tuple[str, ...] = ()
    tails: Mapping[str, int] = field(default_factory=dict)


def build_in_passes(
    rows: Rows,
    positions: Mapping[str, tuple[str, int]] | None = None,
    *,
    exact: int = EXACT,
    keys: int = KEYS,
) -> Built:
    """Profile rows in bounded memory. Where everything fits, the profile is that of `build_profile`.

    Args:
        rows: gives the same rows whenever it is called.
        positions: see `build_profile`.
        exact: numbers of a feature up to which they are kept.
        keys: categories of a feature that are counted at a time.

    Raises:
        UndecidedError: there are no rows.
    """
    drafts: dict[Key, _Draft] = {}
    for batch in rows(None):
        for key, column in batch.items():
            if key not in drafts:
                drafts[key] = _Draft(key, Summary(exact), Frequent(keys))
            drafts[key].add(column)
    height = max((draft.rows for draft in drafts.values()), default=0)
    if not height:
        raise UndecidedError("A baseline needs rows.")
    found = {key: draft.profile() for key, draft in drafts.items() if draft.is_exact}
    found |= _second_pass(rows, {key: draft for key, draft in drafts.items() if not draft.is_exact})
    ordered = [found[key] for key in sorted(drafts, key=lambda key: key[0] == "output")]
    features = _named(ordered)
    names = dict(zip(sorted(drafts, key=lambda key: key[0] == "output"), features, strict=True))
    return Built(
        profile=Profile(height, features, dict(positions or {})),
        thinned=tuple(
            names[key].name for key, draft in drafts.items() if draft.numeric and not draft.summary.is_exact
        ),
        tails={
            names[key].name: draft.frequent.error for key, draft in drafts.items() if names[key].tally.other
        },
    )


def _named(features: list[FeatureProfile]) -> tuple[FeatureProfile, ...]:
    """Outputs that share a name with an input get a prefix."""
    taken = {feature.name for feature in features if feature.role == "input"}
    return tuple(
        replace(feature, name=f"{OUTPUT_PREFIX}{feature.name}")
        if feature.role == "output" and feature.name in taken
        else feature
        for feature in features
    )


@dataclass(slots=True)
class _Draft:
    """What one pass learns about a feature."""

    key: Key
    summary: Summary
    frequent: Frequent
    missing: Missing = field(default_factory=Missing)
    dtype: str = ""
    posinf: int = 0
    neginf: int = 0
    numbers: int = 0
    categories: int = 0
    no_scalars: int = 0

    def add(self, column: Column) -> None:
        if not values.is_scalar(column):
            self.no_scalars += len(column)
        elif values.holds_numbers(column):
            found = values.numbers(column)
            self.dtype = str(found.ordered.dtype)
            self.posinf += found.posinf
            self.neginf += found.neginf
            self.numbers += len(found.ordered)
            self._miss(found.missing)
            self.summary.add(found.finite)
        else:
            counted = values.categories(column)
            self.categories += sum(counted.counts.values())
            self._miss(counted.missing)
            self.frequent.add(counted.counts)

    def _miss(self, more: Missing) -> None:
        had = self.missing
        self.missing = Missing(had.null + more.null, had.nan + more.nan, had.invalid + more.invalid)

    @property
    def rows(self) -> int:
        missing = self.missing
        absent = missing.null + missing.nan + missing.invalid + self.no_scalars
        return self.numbers + self.categories + absent

    @property
    def numeric(self) -> bool:
        return bool(self.dtype) and self.numbers >= self.categories

    @property
    def is_exact(self) -> bool:
        """Whether all values are at hand; not so where batches differ in their kind."""
        one_kind = not (self.numbers and self.categories)
        return one_kind and self.summary.is_exact and not self.frequent.error

    def profile(self) -> FeatureProfile:
        role, name = self.key
        missing = replace(self.missing, invalid=self.missing.invalid + self.no_scalars)
        if not self.numeric:
            return profile_categories(name, role, Categories(self.frequent.counts, missing))
        ordered = self.summary.values()
        if self.posinf or self.neginf:
            ordered = np.concatenate([[-np.inf] * self.neginf, ordered, [np.inf] * self.posinf])
        return profile_numbers(name, role, Numbers(ordered.astype(self.dtype), missing))

    def bins(self) -> FeatureProfile:
        """The frozen bins, to be counted on."""
        role, name = self.key
        if self.numeric and self.summary.rows:
            summary = self.summary
            quantiles = summary.quantiles()
            quarter = bins.FINE_BINS // 4
            scale = scale_of(quantiles[quarter - 1], quantiles[3 * quarter - 1], lambda: summary.deviation)
            ends = (summary.minimum or 0, summary.maximum or 0)
            return numeric_bins(name, role, quantiles, summary.distinct, ends, scale)
        if self.categories:
            kept = tuple(self.frequent.ranked(CATEGORIES_KEPT))
            # With `other` set, what is not kept is counted as such, and not as new.
            tally = replace(Tally.nothing(len(kept)), other=1)
            return FeatureProfile(
                name=name, role=role, kind="categorical", dtype="text", categories=kept, tally=tally
            )
        return FeatureProfile(
            name=name, role=role, kind="empty", dtype=self.dtype or "text", tally=Tally.nothing(1)
        )


def _second_pass(rows: Rows, drafts: Mapping[Key, _Draft]) -> dict[Key, FeatureProfile]:
    if not drafts:
        return {}
    frozen = {key: draft.bins() for key, draft in drafts.items()}
    tallies = {key: Tally.nothing(feature.bin_count) for key, feature in frozen.items()}
    for batch in rows(drafts.keys()):
        for key in batch.keys() & frozen.keys():
            tallies[key] += tally_column(frozen[key], batch[key])
    return {key: _counted(feature, tallies[key]) for key, feature in frozen.items()}


def _counted(feature: FeatureProfile, tally: Tally) -> FeatureProfile:
    """A feature with its counts; categories in the order of these."""
    if feature.kind != "categorical":
        return replace(feature, tally=tally)
    order = sorted(range(len(tally.bins)), key=lambda at: (-int(tally.bins[at]), feature.categories[at]))
    categories = tuple(feature.categories[at] for at in order)
    return replace(feature, categories=categories, tally=replace(tally, bins=tally.bins[order]))
