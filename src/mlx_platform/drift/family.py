"""Several views of the same rows, judged as one feature: projections of vectors, pixels of images.

PSI of a family is the mean of its members' PSI. Without drift it is c times a sum of squared normal variables
whose weights are at most 1 and add up to the members' mean of K - 1, whatever the members have to do with
each other. Of all such sums the one with weights of 1 spreads most (in convex order), and that one is
chi-square with this mean for its degrees of freedom. So the rule for one feature holds for a family, and many
members raise no more alarms than one.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from mlx_platform.core.statistics import chi2_quantile, chi2_tail
from mlx_platform.drift import scores
from mlx_platform.drift.decide import ALPHA, COARSER, ROWS_PER_BIN, Decision, decide
from mlx_platform.drift.extract.images import COLOURS
from mlx_platform.drift.extract.vectors import PROJECTIONS
from mlx_platform.drift.feature import FeatureProfile
from mlx_platform.drift.measure import Contribution, Scores, measure
from mlx_platform.drift.table import BINS, Table, tabulate
from mlx_platform.drift.tally import Tally

Member = tuple[FeatureProfile, Tally]
_MEMBER = re.compile(rf"(.+\.(?:{COLOURS}|{PROJECTIONS}))#\w+")


def family_of(name: str) -> str:
    """The feature that one of this name is judged with; its own name for most."""
    found = _MEMBER.fullmatch(name)
    return found[1] if found else name


def families(members: Sequence[Member]) -> Iterator[list[Member]]:
    """The features that are judged together, in the order of the first of each."""
    found: dict[tuple[str, str], list[Member]] = {}
    for feature, tally in members:
        found.setdefault((feature.role, family_of(feature.name)), []).append((feature, tally))
    yield from found.values()


def measure_family(members: Sequence[Member]) -> Scores:
    """The means of all distances, each member one contribution; of one feature its own."""
    each = [measure(feature, tally) for feature, tally in members]
    if len(each) == 1:
        return each[0]
    part = 1 / len(each)
    gaps = [found.ks for found in each if found.ks is not None]
    lengths = [found.wasserstein for found in each if found.wasserstein is not None]
    names = [feature.name.rpartition("#")[2] for feature, _ in members]
    named = tuple((name, found.psi) for name, found in zip(names, each, strict=True))
    return Scores(
        psi=fmean(found.psi for found in each),
        psi_present=fmean(found.psi_present for found in each),
        psi_missing=fmean(found.psi_missing for found in each),
        kl=fmean(found.kl for found in each),
        kl_reverse=fmean(found.kl_reverse for found in each),
        js_distance=fmean(found.js_distance for found in each),
        ks=fmean(gaps) if gaps else None,
        ks_p_value=None,
        chi_square=_chi_square([found.chi_square for found in each]),
        wasserstein=fmean(lengths) if lengths else None,
        bins=math.ceil(fmean(found.bins for found in each)),
        contributions=tuple(Contribution(name, part, part, part * psi) for name, psi in named),
        members=named,
    )


def _chi_square(each: Sequence[scores.ChiSquare]) -> scores.ChiSquare:
    statistic, degrees = fmean(found.statistic for found in each), fmean(found.degrees for found in each)
    whole = math.ceil(degrees)
    return scores.ChiSquare(statistic, whole, chi2_tail(statistic, whole) if whole else 1.0)


def decide_family(members: Sequence[Member], *, wide: float, missing: bool) -> Decision:
    """Judge a family on one resolution; see `decide.decide`."""
    if len(members) == 1:
        return decide(*members[0], wide=wide, missing=missing)
    decision = None
    for parts in (BINS, *COARSER):
        tables = [_table(feature, tally, parts, missing=missing) for feature, tally in members]
        if min(tables[0].rows) >= ROWS_PER_BIN * max(table.bins for table in tables):
            decision = _by_limit(tables)
            if decision.p_value < ALPHA or decision.limit <= wide:
                return decision
    if decision is not None:
        return decision
    found = [decide(feature, tally, wide=wide, missing=missing) for feature, tally in members]
    least = min(found, key=lambda each: each.p_value)
    return replace(least, p_value=min(1.0, len(found) * least.p_value))  # Bonferroni


def _table(feature: FeatureProfile, tally: Tally, parts: int, *, missing: bool) -> Table:
    table = tabulate(feature, tally, parts)
    return table.with_missing(feature.tally.missing_rows, tally.missing_rows) if missing else table


def _by_limit(tables: Sequence[Table]) -> Decision:
    n, m = tables[0].rows
    score = fmean(scores.psi(*scores.shares(table.baseline, table.window)) for table in tables)
    freedom = fmean(table.bins - 1 for table in tables)
    noise = scores.noise(n, m)
    return Decision(
        method="chi2",
        bins=math.ceil(freedom) + 1,
        psi=score,
        adjusted=score - noise * freedom,
        p_value=chi2_tail(score / noise, freedom) if freedom else 1.0,
        limit=noise * chi2_quantile(0.95, max(1.0, freedom)),
    )
