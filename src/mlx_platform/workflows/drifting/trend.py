"""Windows one after another, and arms or versions side by side, as tables."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mlx_platform.core.report import Fact, HeatMap, Report, Table
from mlx_platform.core.span import Grid, Span
from mlx_platform.core.text import plural, spark
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.verdict import Level, level_counts
from mlx_platform.workflows.drifting.judged import Group, Judged
from mlx_platform.workflows.drifting.window import By

_SHOWN = 24  # windows in the terminal
_COLUMNS = ("rows", "worst feature", "PSI", "drifted", "warn", "verdict")
_NUMERIC = (1, 3, 4, 5)
_CURVES = 10
_MAPPED, _COLUMNS_MAPPED = 40, 48
_DARKEST = 0.5
_OF_ONE = ("newest whole window",)


def with_trend(report: Report, group: Group, grid: Grid) -> Report:
    """A page with the windows of its traffic added."""
    shown = group.trend[-_SHOWN:]
    count = plural(len(group.trend), "window")
    title = f"{count} of {grid.length}" if len(shown) == len(group.trend) else f"The last {_SHOWN} of {count}"
    table = _windows(title, shown, grid)
    more = (_windows(f"All {count}", group.trend, grid),) if len(shown) < len(group.trend) else ()
    worst = _worst(group)
    curves = (_curves(group, worst[:_CURVES]),) if worst and len(group.trend) > 1 else ()
    maps = (_map(group, worst[:_MAPPED], grid),) if worst else ()
    return replace(
        report,
        facts=(*report.facts, Fact("newest whole window", _latest(group, grid))),
        sections=(*report.sections, table, *curves),
        details=(*maps, *more, *report.details),
    )


def _worst(group: Group) -> list[str]:
    """The features by the highest PSI that they have had in a window."""
    highest: dict[str, float] = {}
    for judged in group.trend:
        for feature in judged.features:
            if feature.scores:
                highest[feature.name] = max(highest.get(feature.name, 0.0), feature.psi)
    return sorted(highest, key=lambda name: (-highest[name], name))


def _over_time(group: Group, name: str, windows: int) -> tuple[float, ...]:
    """PSI of a feature in the last windows; NaN where there is none."""
    found = []
    for judged in group.trend[-windows:]:
        feature = next((each for each in judged.features if each.name == name), None)
        found.append(feature.psi if feature is not None else math.nan)
    return tuple(found)


def _curves(group: Group, names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        values = _over_time(group, name, _SHOWN)
        known = [value for value in values if math.isfinite(value)]
        highest = max(known, default=0.0) or 1.0
        ends = (f"{known[0]:.4f}", f"{known[-1]:.4f}", f"{highest:.4f}") if known else ("", "", "")
        rows.append((name, spark(value / highest for value in values), *ends))
    columns = ("feature", "PSI over time", "first", "last", "highest")
    return Table("The features that moved most", columns, tuple(rows), numeric=(2, 3, 4))


def _map(group: Group, names: Sequence[str], grid: Grid) -> HeatMap:
    shown = group.trend[-_COLUMNS_MAPPED:]
    return HeatMap(
        "PSI of each feature in each window",
        tuple(names),
        tuple(begins(each.span, grid) for each in shown),
        tuple(_over_time(group, name, _COLUMNS_MAPPED) for name in names),
        darkest=_DARKEST,
        note=f"Darkest from {_DARKEST:g} on. Few rows have a large PSI without any drift, as verdicts know.",
    )


def _latest(group: Group, grid: Grid) -> str:
    if group.latest is None:
        return "none is over yet"
    latest = group.latest
    return f"{begins(latest.span, grid)}, {plural(latest.rows, 'row')}: {latest.verdict}"


def _windows(title: str, trend: Sequence[Judged], grid: Grid) -> Table:
    rows = tuple(_line(begins(each.span, grid), each, each.verdict) for each in trend)
    return Table(title, (f"from ({grid.zone.key})", *_COLUMNS), rows, numeric=_NUMERIC)


def _line(name: str, judged: Judged, verdict: Verdict) -> tuple[str | Verdict, ...]:
    counts = level_counts(judged.features)
    scored = [feature for feature in judged.features if feature.scores]
    worst = max(scored, key=lambda feature: feature.psi, default=None)
    return (
        name,
        f"{judged.rows:,}",
        worst.name if worst else "",
        f"{worst.psi:.4f}" if worst else "",
        str(counts[Level.DRIFT]),
        str(counts[Level.WARN]),
        verdict,
    )


def begins(span: Span, grid: Grid) -> str:
    """The beginning of a window as clocks of its zone show it, with the offset that tells 1:30 from 1:30."""
    if span.since is None:
        return ""
    return span.since.astimezone(grid.zone).strftime("%Y-%m-%d %H:%M %z")


def side_by_side(groups: Sequence[Group], pages: Sequence[Report], by: By) -> Report:
    """Arms or versions in one table, and the page of each below.

    Args:
        groups: with their names.
        pages: of each.
        by: what they are.
    """
    first = pages[0]
    failed = [group.name for group in groups if group.verdict is Verdict.FAIL]
    found = f"{', '.join(failed)} drifted" if failed else "none has drifted"
    rows = tuple(_line(group.name, group.whole, group.verdict) for group in groups)
    table = Table(f"Each {by} by itself", (by, *_COLUMNS), rows, numeric=_NUMERIC)
    named = list(zip(groups, pages, strict=True))
    return replace(
        first,
        summary=f"{plural(len(groups), by)}, {found}.",
        facts=tuple(fact for fact in first.facts if fact.label not in _OF_ONE),
        sections=(table, *(_titled(group, part) for group, page in named for part in page.sections)),
        details=tuple(_titled(group, part) for group, page in named for part in page.details),
        checks=tuple(
            replace(check, group=f"{by} {group.name}") for group, page in named for check in page.checks
        ),
        next_steps=next((page.next_steps for page in pages if page.next_steps), ()),
    )


def _titled(group: Group, part: Any) -> Any:
    return replace(part, title=f"{group.name}: {part.title}")
