"""The answer drawn: a sentence, the worst features, and each one as a check."""

import math
from collections.abc import Sequence

from mlx_platform.core.clock import both_zones
from mlx_platform.core.report import Bars, Fact, Report, Series, Table
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.text import plural, spark
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.drift.measure import Contribution
from mlx_platform.drift.verdict import FailOn, FeatureDrift, Level, level_counts
from mlx_platform.workflows.drifting.baseline import Baseline
from mlx_platform.workflows.drifting.window import Window
from mlx_platform.workflows.subject import Subject

_LISTED = 10
_CHARTED = 6
_BINS_SHOWN = 24
_WORDS = {
    Level.DRIFT: "drifted",
    Level.WARN: "warn",
    Level.ERROR: "cannot be compared",
    Level.INSUFFICIENT: "too few rows",
    Level.OK: "ok",
}
_ORDER = list(_WORDS)
_COLUMNS = ("feature", "role", "PSI", "beyond chance", "KL", "p", "missing", "baseline → window", "verdict")


def worst_first(found: Sequence[FeatureDrift]) -> list[FeatureDrift]:
    """By PSI; what has none comes last."""
    return sorted(
        found, key=lambda each: (math.isnan(each.psi), -each.psi if each.scores else 0.0, each.name)
    )


def draw(
    subject: Subject | None,
    baseline: Baseline,
    window: Window,
    found: Sequence[FeatureDrift],
    settings: DriftSettings,
    fail_on: FailOn,
) -> Report:
    """The page of a window; `found` comes worst first."""
    charts = tuple(chart for feature in found[:_CHARTED] if feature.scores for chart in _charts(feature))
    table = _table(f"All {plural(len(found), 'feature')}, worst first", found)
    short = _table(f"The {_LISTED} features with the highest PSI", found[:_LISTED])
    return Report(
        title=f"Drift of {subject.ref}" if subject else "Drift",
        summary=_summary(window, found),
        facts=_facts(subject, baseline, window, settings),
        sections=(short if len(found) > _LISTED else table,) if found else (),
        checks=tuple(_check(feature, settings, fail_on) for feature in found) or (_no_rows(window),),
        details=((table,) if len(found) > _LISTED else ()) + charts,
        next_steps=_next_steps(subject, window, found),
    )


def _summary(window: Window, found: Sequence[FeatureDrift]) -> str:
    if not found:
        return "The window holds no rows, so nothing can be said about drift."
    counts = level_counts(found)
    parts = [f"{counts[level]} {_WORDS[level]}" for level in _ORDER if counts[level]]
    text = f"{plural(len(found), 'feature')} over {plural(window.rows, 'row')}: {', '.join(parts)}."
    alarms = [feature for feature in found if feature.level in {Level.DRIFT, Level.WARN}]
    if alarms:
        named = ", ".join(f"{feature.name} (PSI {feature.psi:.3f})" for feature in alarms[:3])
        text += f" Most: {named}."
    return text


def _facts(
    subject: Subject | None, baseline: Baseline, window: Window, settings: DriftSettings
) -> tuple[Fact, ...]:
    span = window.span
    since, until = span.since or window.first, span.until or window.last
    facts = [Fact("version", subject.ref)] if subject else []
    facts.append(Fact("baseline", f"{baseline.source}, {plural(baseline.profile.rows, 'row')}"))
    facts.append(Fact("window", f"{window.source}, {plural(window.rows, 'row')}"))
    if since and until:
        facts.append(Fact("time", f"{both_zones(since)} to {both_zones(until)}"))
    if window.stats.segments:
        facts.append(
            Fact("log", f"{plural(window.stats.records, 'record')}, {window.stats.share_usable:.1%} usable")
        )
    facts.append(
        Fact(
            "thresholds",
            f"PSI beyond chance: warn {settings.warn:g}, drift {settings.drift:g}; {_policy(settings)}",
        )
    )
    return tuple(facts)


def _policy(settings: DriftSettings) -> str:
    match settings.policy:
        case "any":
            return "any feature"
        case "share":
            return f"{settings.share:.0%} of the features"
        case "weighted":
            return f"{settings.share:.0%} of the features' weights"


def _table(title: str, found: Sequence[FeatureDrift]) -> Table:
    rows = tuple(
        (
            feature.name,
            feature.role,
            _number(feature.scores.psi if feature.scores else None),
            _number(feature.decision.adjusted if feature.decision else None),
            _number(feature.scores.kl if feature.scores else None),
            "" if feature.p_value is None else f"{feature.p_value:.2g}",
            _rates(feature.missing_rate),
            shapes(feature),
            _WORDS[feature.level],
        )
        for feature in found
    )
    return Table(title, _COLUMNS, rows, numeric=(2, 3, 4, 5, 6))


def shapes(feature: FeatureDrift) -> str:
    """Both distributions over the same bins as bars in a line of text, each to the scale of both."""
    parts = _shown(feature)
    highest = max((max(part.baseline, part.window) for part in parts), default=0.0)
    if not highest:
        return ""
    sides = ((part.baseline for part in parts), (part.window for part in parts))
    return " → ".join(spark(share / highest for share in side) for side in sides)


def _shown(feature: FeatureDrift) -> tuple[Contribution, ...]:
    """The bins that there is room for: those that add most to PSI, in their order."""
    parts = feature.scores.contributions if feature.scores else ()
    if len(parts) <= _BINS_SHOWN:
        return parts
    chosen = sorted(range(len(parts)), key=lambda index: -parts[index].psi)[:_BINS_SHOWN]
    return tuple(parts[index] for index in sorted(chosen))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _rates(rates: tuple[float, float]) -> str:
    return f"{rates[0]:.1%} → {rates[1]:.1%}" if any(rates) else "0"


def _charts(feature: FeatureDrift) -> tuple[Bars, Bars]:
    """Both distributions over each other, and what each bin adds to PSI."""
    parts = _shown(feature)
    labels = tuple(part.label for part in parts)
    shares = (
        Series("baseline", tuple(part.baseline for part in parts)),
        Series("window", tuple(part.window for part in parts)),
    )
    more = tuple(part.psi if part.window >= part.baseline else math.nan for part in parts)
    fewer = tuple(part.psi if part.window < part.baseline else math.nan for part in parts)
    added = (Series("more rows than in the baseline", more), Series("fewer rows", fewer))
    return (
        Bars(f"{feature.name}: PSI {feature.psi:.3f}", labels, shares, unit="share of rows"),
        Bars(f"{feature.name}: what each bin adds to PSI", labels, added, unit="PSI"),
    )


def _check(feature: FeatureDrift, settings: DriftSettings, fail_on: FailOn) -> Check:
    threshold = settings.limits(feature.name)[0 if fail_on == "warn" else 1]
    measured = f"{feature.decision.adjusted:.4f}" if feature.decision else ""
    return Check(
        name=feature.name,
        verdict=_verdict(feature.level, fail_on),
        measured=measured,
        threshold=f"< {threshold:g}",
        message=_message(feature),
        group=feature.role,
        skipped="" if settings.weight(feature.name) else "weight 0: decides nothing",
    )


def _verdict(level: Level, fail_on: FailOn) -> Verdict:
    match level:
        case Level.OK:
            return Verdict.PASS
        case Level.WARN:
            return Verdict.FAIL if fail_on == "warn" else Verdict.PASS
        case Level.DRIFT:
            return Verdict.FAIL
        case Level.INSUFFICIENT:
            return Verdict.UNDECIDED
        case Level.ERROR:
            return Verdict.ERROR


def _message(feature: FeatureDrift) -> str:
    if feature.message:
        return feature.message
    parts = [] if feature.level is Level.OK else [_WORDS[feature.level]]
    decision = feature.decision
    if feature.level is Level.INSUFFICIENT and decision and math.isfinite(decision.limit):
        parts.append(f"with {feature.rows[1]:,} rows chance alone reaches a PSI of {decision.limit:.2f}")
    if feature.new_categories:
        parts.append("new: " + ", ".join(key for key, _ in feature.new_categories[:3]))
    if feature.out_of_range > 0.01:
        parts.append(f"{feature.out_of_range:.1%} outside of the baseline's range")
    if feature.infinite:
        parts.append(f"{plural(feature.infinite, 'infinite value')}")
    if feature.invalid:
        parts.append(f"{plural(feature.invalid, 'value')} of another type")
    return "; ".join(parts)


def _no_rows(window: Window) -> Check:
    measured = plural(window.rows, "row")
    return Check("window", Verdict.UNDECIDED, measured, ">= 1 row", "The window is empty.", "window")


def _next_steps(subject: Subject | None, window: Window, found: Sequence[FeatureDrift]) -> tuple[str, ...]:
    ref = subject.ref if subject else "REF"
    if not found or all(feature.level is Level.INSUFFICIENT for feature in found):
        return (f"mlx drift {ref} --traffic {window.source} --since 7d    (a longer window)",)
    if subject and window.stats.segments and any(feature.level is Level.DRIFT for feature in found):
        return (
            f"mlx consistency {ref} --traffic {window.source}    (is it the data, or the serving code?)",
            f"mlx eval {ref} --data RECENT.parquet    (does it cost accuracy?)",
        )
    return ()
