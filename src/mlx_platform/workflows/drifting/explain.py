"""`mlx drift --explain`: how the numbers of one feature come about, for who wants to work them out again."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Report, Section, Table, Text
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.statistics import chi2_quantile
from mlx_platform.core.text import did_you_mean, plural, printable
from mlx_platform.drift import scores
from mlx_platform.drift.decide import ALPHA
from mlx_platform.drift.measure import Scores
from mlx_platform.drift.verdict import FALSE_DISCOVERIES, FeatureDrift

_COLUMNS = ("bin", "a", "b", "p", "q", "ln(p/q)", "(p-q) ln(p/q)")


def chosen(found: Sequence[FeatureDrift], name: str) -> FeatureDrift:
    """The feature of this name.

    Raises:
        UsageError: there is none.
    """
    feature = next((each for each in found if each.name == name), None)
    if feature is None:
        raise UsageError(
            f"There is no feature {printable(name, 80)!r} to explain.",
            hint=did_you_mean(name, [each.name for each in found]),
        )
    return feature


def explained(report: Report, feature: FeatureDrift, settings: DriftSettings, features: int) -> Report:
    """A page that tells of one feature alone, in place of the table of all.

    Args:
        report: of the window.
        feature: one of it.
        settings: by which it was judged.
        features: that were judged together.
    """
    return replace(
        report,
        sections=sections(feature, settings, features),
        checks=tuple(check for check in report.checks if check.name == feature.name),
    )


def sections(feature: FeatureDrift, settings: DriftSettings, features: int) -> tuple[Section, ...]:
    """The counts, what each bin adds, and how the verdict follows from the sum."""
    if feature.scores is None:
        return (Text(f"{feature.name}", f"{feature.message} There is nothing to work out."),)
    if feature.scores.members:
        return (_members(feature.scores),)
    return (
        _bins(feature.scores, feature.rows),
        Text("From the sum to the verdict", "\n".join(_steps(feature, feature.scores, settings, features))),
    )


def _members(found: Scores) -> Table:
    cells = tuple((name, f"{psi:.6f}") for name, psi in found.members)
    title = f"{len(cells)} views of the same rows: PSI is their mean"
    return Table(title, ("view", "PSI"), (*cells, ("mean", f"{found.psi:.6f}")), numeric=(1,))


def _counts(found: Scores, rows: tuple[int, int]) -> tuple[Any, Any]:
    """Rows of both sides [K] in the bins of the scores, which hold their shares."""
    a = np.rint([part.baseline * rows[0] for part in found.contributions]).astype(np.int64)
    b = np.rint([part.window * rows[1] for part in found.contributions]).astype(np.int64)
    return a, b


def _bins(found: Scores, rows: tuple[int, int]) -> Table:
    a, b = _counts(found, rows)
    p, q = scores.shares(a, b)
    held = [part for part, one, other in zip(found.contributions, a, b, strict=True) if one or other]
    cells = [
        (part.label, f"{one:,}", f"{other:,}", f"{u:.6f}", f"{v:.6f}", f"{np.log(u / v):+.6f}", f"{term:.6f}")
        for part, one, other, u, v, term in zip(
            held, a[(a > 0) | (b > 0)], b[(a > 0) | (b > 0)], p, q, scores.contributions(p, q), strict=True
        )
    ]
    total = (
        "sum",
        f"{a.sum():,}",
        f"{b.sum():,}",
        f"{p.sum():.6f}",
        f"{q.sum():.6f}",
        "",
        f"{found.psi:.6f}",
    )
    title = f"n = {a.sum():,} rows of the baseline (a), m = {b.sum():,} of the window (b), K = {len(p)} bins"
    return Table(title, _COLUMNS, (*cells, total), numeric=(1, 2, 3, 4, 5, 6))


def _steps(feature: FeatureDrift, found: Scores, settings: DriftSettings, features: int) -> list[str]:
    n, m = feature.rows
    c, degrees = scores.noise(n, m), max(1, found.bins - 1)
    warn, drift = settings.limits(feature.name)
    k = found.bins
    js = found.js_distance
    lines = [
        f"p = (a + 0.5) / (n + 0.5 K) = (a + 0.5) / {n + 0.5 * k:,.1f}, q = (b + 0.5) / {m + 0.5 * k:,.1f}.",
        f"PSI = sum of (p - q) ln(p / q) = {found.psi:.6f}.",
        f"Chance: c = 1/n + 1/m = {c:.6g}. Without drift PSI is c (K - 1) = {c * degrees:.6f} on average,",
        f"  and below c x chi2(0.95, K - 1) = {c * chi2_quantile(0.95, degrees):.6f} in 95 of 100 windows.",
        f"Beyond chance: PSI - c (K - 1) = {found.psi - c * degrees:+.6f}.",
        f"KL: {found.kl:.6f} nats, reversed {found.kl_reverse:.6f}.",
        f"JS distance: {js:.6f} nats, {js / np.sqrt(np.log(2)):.6f} bits.",
        f"Small shifts have PSI = 2 KL = 8 JS^2: {found.psi:.4f}, {2 * found.kl:.4f}, {8 * js**2:.4f}.",
    ]
    decision = feature.decision
    if decision is not None:
        method, bins = _METHODS[decision.method], plural(decision.bins, "bin")
        lines += [
            f"Judged on {bins} by {method}: PSI {decision.psi:.6f}, p = {decision.p_value:.3g}.",
            f"  Beyond chance there: {decision.adjusted:+.6f}.",
            f"Significant: {'yes' if feature.significant else 'no'}; that takes p < {ALPHA:g}, and to be",
            f"  kept by Benjamini-Hochberg at {FALSE_DISCOVERIES:.0%} over {plural(features, 'feature')}.",
        ]
    lines.append(f"Limits: warn from {warn:g}, drift from {drift:g} beyond chance. Verdict: {feature.level}.")
    return lines


_METHODS = {
    "chi2": "the chi-square limit",
    "ks": "the exact test of Kolmogorov and Smirnov",
    "permutation": "10,000 permutations",
}


def explanation(feature: FeatureDrift, settings: DriftSettings) -> dict[str, Any]:
    """The same for machines: counts, shares and terms of each bin, and what the verdict rests on."""
    found = feature.scores
    if found is None:
        return {"feature": feature.name, "message": feature.message}
    if found.members:
        return {"feature": feature.name, "psi": found.psi, "views": dict(found.members)}
    a, b = _counts(found, feature.rows)
    held = (a > 0) | (b > 0)
    p, q = scores.shares(a, b)
    labels = [part.label for part, kept in zip(found.contributions, held, strict=True) if kept]
    warn, drift = settings.limits(feature.name)
    terms = scores.contributions(p, q)
    c = scores.noise(*feature.rows)
    return {
        "feature": feature.name,
        "smoothing": scores.SMOOTHING,
        "rows": {"baseline": feature.rows[0], "window": feature.rows[1]},
        "bins": [
            {"bin": label, "baseline": int(one), "window": int(other), "p": u, "q": v, "psi": term}
            for label, one, other, u, v, term in zip(
                labels, a[held], b[held], p.tolist(), q.tolist(), terms.tolist(), strict=True
            )
        ],
        "psi": found.psi,
        "noise": c,
        "expected_without_drift": c * max(1, found.bins - 1),
        "warn": warn,
        "drift": drift,
    }
