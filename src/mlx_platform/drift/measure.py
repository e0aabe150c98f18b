"""How far apart a feature's baseline and window are."""

from dataclasses import dataclass

import numpy as np

from mlx_platform.drift import scores
from mlx_platform.drift.feature import FeatureProfile
from mlx_platform.drift.table import MISSING, Table, make_table, tabulate
from mlx_platform.drift.tally import Tally


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a bin adds to PSI, and its raw shares on both sides."""

    label: str
    baseline: float
    window: float
    psi: float


@dataclass(frozen=True, slots=True)
class Scores:
    """Distances over one table, missing rows a bin of it; `psi_present` leaves them out."""

    psi: float
    psi_present: float
    psi_missing: float
    kl: float
    kl_reverse: float
    js_distance: float
    ks: float | None
    ks_p_value: float | None
    chi_square: scores.ChiSquare
    wasserstein: float | None
    bins: int
    contributions: tuple[Contribution, ...]
    members: tuple[tuple[str, float], ...] = ()
    """Of a family of features that are judged as one: the PSI of each, of which `psi` is the mean."""


def measure(feature: FeatureProfile, window: Tally) -> Scores:
    """All distances of a feature at its own resolution."""
    present = tabulate(feature, window)
    missing = (feature.tally.missing_rows, window.missing_rows)
    table = present.with_missing(*missing) if any(missing) else present
    p, q = scores.shares(table.baseline, table.window)
    comparable = feature.tally.present > 0 and window.present > 0
    ordered = comparable and feature.kind in {"numeric", "discrete", "constant"}
    ks = scores.ks_distance(feature.tally.bins, window.bins) if ordered else None
    return Scores(
        psi=scores.psi(p, q),
        psi_present=_psi_of(present) if comparable else 0.0,
        psi_missing=_psi_of(_missing_table(feature, window)),
        kl=scores.kl(p, q),
        kl_reverse=scores.kl(q, p),
        js_distance=scores.js_distance(p, q),
        ks=ks,
        ks_p_value=None if ks is None else scores.ks_tail(ks, feature.tally.present, window.present),
        chi_square=scores.chi_square(table.baseline, table.window),
        wasserstein=_wasserstein(feature, window) if ordered else None,
        bins=table.bins,
        contributions=_contributions(table),
    )


def _psi_of(table: Table) -> float:
    return scores.psi(*scores.shares(table.baseline, table.window))


def _missing_table(feature: FeatureProfile, window: Tally) -> Table:
    baseline = np.asarray([feature.tally.present, feature.tally.missing_rows])
    return make_table(("present", MISSING), baseline, np.asarray([window.present, window.missing_rows]))


def _contributions(table: Table) -> tuple[Contribution, ...]:
    n, m = table.rows
    parts = scores.contributions(*scores.shares(table.baseline, table.window))
    sides = zip(table.labels, table.baseline.tolist(), table.window.tolist(), parts.tolist(), strict=True)
    return tuple(Contribution(label, a / n, b / m, part) for label, a, b, part in sides)


def _wasserstein(feature: FeatureProfile, window: Tally) -> float | None:
    """In units of the baseline's spread; within a few per cent, for it is read off the fine bins."""
    sides = [_staircase(feature, tally) for tally in (feature.tally, window)]
    if sides[0] is None or sides[1] is None:
        return None
    return scores.wasserstein(sides[0], sides[1]) / feature.scale


def _staircase(feature: FeatureProfile, tally: Tally) -> scores.Staircase | None:
    """The distribution function: straight within bins, and from the baseline's ends to values beyond them."""
    first, last = feature.tally.minimum, feature.tally.maximum
    if tally.minimum is None or tally.maximum is None or first is None or last is None:
        return None
    low, high = float(tally.minimum), float(tally.maximum)
    rows = int(tally.bins.sum())
    cumulated = np.cumsum(tally.bins) / rows
    if feature.kind == "numeric":
        knots = [float(first), *feature.edges.astype(np.float64).tolist(), float(last)]
        shares = [tally.below / rows, *cumulated[:-1].tolist(), 1 - tally.above / rows]
        if low < knots[0]:
            knots, shares = [low, *knots], [0.0, *shares]
        if high > knots[-1]:
            knots, shares = [*knots, high], [*shares, 1.0]
        return scores.Staircase(np.asarray(knots), np.asarray(shares), steps=False)
    known = np.asarray(feature.values, dtype=np.float64)
    places = np.empty(2 * len(known) + 1)
    places[1::2] = known
    places[0::2] = np.concatenate(
        [[min(low, known[0])], (known[1:] + known[:-1]) / 2, [max(high, known[-1])]]
    )
    return scores.Staircase(places, cumulated, steps=True)
