"""Points over two numeric axes, with bars of counts below where there are some."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mlx_platform.core.report import Plot, Points
from mlx_platform.core.text import printable
from mlx_platform.workflows.reports.scale import Scale, Tick, scale_of

_LEFT, _RIGHT, _TOP, _WIDTH, _HEIGHT = 66.0, 14.0, 10.0, 400.0, 280.0
_COUNTS, _GAP, _FOOT = 56.0, 12.0, 44.0
_LINE, _CHARACTER = 12.0, 6.0  # height of a label and width of a letter, at least


@dataclass(frozen=True, slots=True)
class Dot:
    """A point, with the ends of its whisker and the text beside it if it has them.

    `anchor` is where the text goes, as SVG calls it: to the right, or left of a dot in the right half;
    `line` is its height, moved where it would cover another one.
    """

    x: float
    y: float
    top: float | None
    bottom: float | None
    title: str
    label: str
    anchor: str
    line: float


@dataclass(frozen=True, slots=True)
class Column:
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    name: str
    path: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class DrawnPlot:
    """A plot in SVG units: its frame, ticks, series, guide line, and the bars of the counts below."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    foot: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[DrawnSeries, ...]
    guide: tuple[float, float, float, float] | None
    columns: tuple[Column, ...]
    most: int


def draw_plot(section: Plot) -> DrawnPlot:
    """Lay out a plot; points that are not finite are left out and break a line."""
    right, bottom = _LEFT + _WIDTH, _TOP + _HEIGHT
    horizontal = scale_of(_horizontal(section), _LEFT, right, round_ends=True, margin=0.0)
    vertical = scale_of(_vertical(section), bottom, _TOP, round_ends=True, margin=0.0)
    foot = bottom + (_GAP + _COUNTS if section.counts else 0.0)
    guide = None
    if section.guide:
        (x1, y1), (x2, y2) = section.guide
        guide = (horizontal(x1), vertical(y1), horizontal(x2), vertical(y2))
    return DrawnPlot(
        width=right + _RIGHT,
        height=foot + _FOOT,
        left=_LEFT,
        right=right,
        top=_TOP,
        bottom=bottom,
        foot=foot,
        x_ticks=horizontal.ticks(6),
        y_ticks=vertical.ticks(6),
        series=_apart([_series(one, section.kind, horizontal, vertical) for one in section.series]),
        guide=guide,
        columns=tuple(_columns(section, horizontal, foot)),
        most=max((count for _, _, count in section.counts), default=0),
    )


def _horizontal(section: Plot) -> Iterable[float]:
    for series in section.series:
        yield from series.x
    for start, end, _ in section.counts:
        yield from (start, end)
    if section.guide:
        yield from (x for x, _ in section.guide)


def _vertical(section: Plot) -> Iterable[float]:
    for series in section.series:
        yield from (*series.y, *series.lower, *series.upper)
    if section.guide:
        yield from (y for _, y in section.guide)


def _series(series: Points, kind: str, horizontal: Scale, vertical: Scale) -> DrawnSeries:
    """A line, or dots; a point of a line that has no neighbours is a dot, since no line leads to it."""
    dots, commands, pen = [], [], "M"
    drawn = [math.isfinite(x) and math.isfinite(y) for x, y in zip(series.x, series.y, strict=True)]
    for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if not drawn[place]:
            pen = "M"
            continue
        at, height = horizontal(x), vertical(y)
        commands.append(f"{pen}{at:.1f} {height:.1f}")
        pen = "L"
        if kind == "dots" or not any(drawn[max(0, place - 1) : place] + drawn[place + 1 : place + 2]):
            top, bottom = (
                vertical(ends[place]) if ends and math.isfinite(ends[place]) else None
                for ends in (series.upper, series.lower)
            )
            label = printable(series.labels[place], 60) if series.labels else ""
            anchor = "end" if at > _LEFT + _WIDTH / 2 else "start"
            title = f"{printable(label or series.name, 60)}: {x:.4g}, {y:.4g}"
            dots.append(Dot(at, height, top, bottom, title, label, anchor, height))
    return DrawnSeries(series.name, "" if kind == "dots" else " ".join(commands), tuple(dots))


def _apart(drawn: list[DrawnSeries]) -> tuple[DrawnSeries, ...]:
    """The same with labels moved down until none covers another one, the highest first."""
    placed: list[tuple[float, float, float]] = []
    lines: dict[Dot, float] = {}
    labelled = [dot for series in drawn for dot in series.dots if dot.label]
    for dot in sorted(labelled, key=lambda dot: (dot.y, dot.x)):
        width = len(dot.label) * _CHARACTER
        left = dot.x if dot.anchor == "start" else dot.x - width
        line = dot.y
        while any(
            abs(line - other) < _LINE and left < end and start < left + width for other, start, end in placed
        ):
            line += 1
        placed.append((line, left, left + width))
        lines[dot] = line
    return tuple(
        replace(series, dots=tuple(replace(dot, line=lines.get(dot, dot.y)) for dot in series.dots))
        for series in drawn
    )


def _columns(section: Plot, horizontal: Scale, foot: float) -> Iterable[Column]:
    most = max((count for _, _, count in section.counts), default=0)
    for start, end, count in section.counts:
        if count:
            left, right = horizontal(start), horizontal(end)
            height = max(1.0, count / most * _COUNTS)
            title = f"{start:.4g} to {end:.4g}: {count:,}"
            yield Column(left + 0.5, foot - height, max(0.5, right - left - 1), height, title)
