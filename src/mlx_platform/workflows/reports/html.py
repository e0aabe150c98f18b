"""One self-contained HTML page per result: no network, no script, charts as inline SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_platform.core.clock import both_zones, system_clock
from mlx_platform.core.report import Bars, Lines, Matrix, Result, Section, Series, Table, Text
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.core.version import VERSION


def html_page(result: Result) -> str:
    """Draw the result. Every foreign string is escaped; the page forbids scripts and network by policy."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("mlx_platform.workflows.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = _kind
    environment.filters["shown"] = _shown
    environment.filters["verdict"] = lambda cell: str(cell) if isinstance(cell, Verdict) else ""
    environment.globals.update(bar_chart=bar_chart, line_chart=line_chart, heat=_heat)
    return environment.get_template("report.html.j2").render(
        result=result,
        report=result.report,
        written=both_zones(system_clock()),
        version=VERSION,
    )


def _shown(text: object) -> str:
    return printable(str(text), limit=20_000)


def _kind(section: Section) -> str:
    kinds: dict[type, str] = {Table: "table", Bars: "bars", Lines: "lines", Matrix: "matrix", Text: "text"}
    return kinds[type(section)]


def _heat(value: int, row: Sequence[int]) -> str:
    """How dark a matrix cell is: its share of the row, from 0 to 1."""
    total = sum(row)
    return f"{value / total:.3f}" if total else "0"


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    series: int
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    position: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart in SVG units: the shapes of its series, and where the ticks stand."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    paths: tuple[str, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


_LEFT, _TOP, _PLOT_HEIGHT, _FOOT = 56.0, 10.0, 180.0, 64.0
_PLOT_WIDTH = 660.0
_MOST_LABELS = 26


def bar_chart(section: Bars) -> Chart:
    """Lay out grouped bars; a value that is not finite leaves its place empty."""
    top = _ceiling(section.series)
    slot = _PLOT_WIDTH / max(1, len(section.labels))
    width = min(28.0, slot * 0.8 / max(1, len(section.series)))
    bars = []
    for index, series in enumerate(section.series):
        for place, value in enumerate(series.values):
            if not math.isfinite(value):
                continue
            height = max(0.0, value) / top * _PLOT_HEIGHT
            middle = _LEFT + slot * (place + 0.5)
            bars.append(
                Bar(
                    x=middle + width * (index - len(section.series) / 2),
                    y=_TOP + _PLOT_HEIGHT - height,
                    width=width * 0.94,
                    height=height,
                    series=index,
                    title=f"{printable(section.labels[place])} · {printable(series.name)}: {value:.4g}",
                )
            )
    return _chart(tuple(bars), (), section.labels, slot, top)


def line_chart(section: Lines) -> Chart:
    """Lay out one line per series; NaN breaks a line."""
    top = _ceiling(section.series)
    slot = _PLOT_WIDTH / max(1, len(section.labels))
    paths = []
    for series in section.series:
        pen, commands = "M", []
        for place, value in enumerate(series.values):
            if not math.isfinite(value):
                pen = "M"
                continue
            x = _LEFT + slot * (place + 0.5)
            y = _TOP + _PLOT_HEIGHT * (1 - max(0.0, value) / top)
            commands.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        paths.append(" ".join(commands))
    return _chart((), tuple(paths), section.labels, slot, top)


def _chart(
    bars: tuple[Bar, ...], paths: tuple[str, ...], labels: Sequence[str], slot: float, top: float
) -> Chart:
    step = max(1, math.ceil(len(labels) / _MOST_LABELS))
    x_ticks = tuple(
        Tick(_LEFT + slot * (place + 0.5), printable(label, limit=14))
        for place, label in enumerate(labels)
        if place % step == 0
    )
    y_ticks = tuple(
        Tick(_TOP + _PLOT_HEIGHT * (1 - quarter / 4), f"{top * quarter / 4:.3g}") for quarter in range(5)
    )
    return Chart(
        width=_LEFT + _PLOT_WIDTH + 10, height=_TOP + _PLOT_HEIGHT + _FOOT, bars=bars, paths=paths,
        x_ticks=x_ticks, y_ticks=y_ticks,
    )  # fmt: skip


def _ceiling(series: Sequence[Series]) -> float:
    """A round number at or above every value."""
    highest = max((value for one in series for value in one.values if math.isfinite(value)), default=0.0)
    if highest <= 0:
        return 1.0
    magnitude = 10.0 ** math.floor(math.log10(highest))
    return next(magnitude * step for step in (1, 2, 2.5, 5, 10) if magnitude * step >= highest * 0.999999)
