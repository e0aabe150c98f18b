"""Bars, lines and matrices laid out in SVG units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_platform.core.report import Bars, HeatMap, Lines, Matrix, Series
from mlx_platform.core.text import printable
from mlx_platform.workflows.reports.scale import Tick, tick_text

_LEFT, _TOP, _PLOT_HEIGHT, _FOOT = 56.0, 10.0, 180.0, 64.0
_PLOT_WIDTH = 660.0
_MOST_LABELS = 26
_MOST_NUMBERS = 20  # columns of a matrix that is written out; a larger one is drawn
_MAP_WIDTH, _MAP_LEFT, _MAP_FOOT = 620.0, 110.0, 90.0
_LEAST_LABEL = 8.0  # SVG units that a label needs


@dataclass(frozen=True, slots=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    series: int
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart in SVG units: the shapes of its series, and where the ticks stand."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    paths: tuple[str, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    x: float
    y: float
    share: str
    right: bool
    title: str


@dataclass(frozen=True, slots=True)
class Map:
    """A matrix too large for numbers: its cells that hold something, and the names that there is room for."""

    width: float
    height: float
    left: float
    side: float
    edge: float
    cells: tuple[Cell, ...]
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]


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


def heat(value: int, row: Sequence[int]) -> str:
    """How dark a matrix cell is, from 0 to 1: the root of its share of the row, so that few show as well."""
    total = sum(row)
    return f"{math.sqrt(value / total):.3f}" if total and value > 0 else "0"


@dataclass(frozen=True, slots=True)
class HeatCell:
    """How dark a cell is, from 0 to 1, and what stands in it."""

    share: str
    text: str


def heat_cells(section: HeatMap, row: int) -> tuple[HeatCell, ...]:
    """The cells of a row of a heat map."""
    return tuple(
        HeatCell(f"{min(1.0, max(0.0, value) / section.darkest):.3f}", f"{value:.2f}")
        if math.isfinite(value)
        else HeatCell("0", "")
        for value in section.values[row]
    )


def is_large(section: Matrix) -> bool:
    """Whether a matrix has more columns than numbers can be read of."""
    return len(section.columns) > _MOST_NUMBERS


def matrix_map(section: Matrix) -> Map:
    """Lay out a large matrix as a square of colour for each cell that is not empty."""
    side = min(14.0, _MAP_WIDTH / max(1, len(section.columns)))
    right = section.rows == section.columns
    cells = tuple(
        Cell(
            x=_MAP_LEFT + side * column,
            y=side * row,
            share=heat(value, values),
            right=right and row == column,
            title=f"{_name(section.rows[row])} → {_name(section.columns[column])}: {value:,}",
        )
        for row, values in enumerate(section.values)
        for column, value in enumerate(values)
        if value
    )
    return Map(
        width=_MAP_LEFT + side * len(section.columns) + 4,
        height=side * len(section.rows) + _MAP_FOOT,
        left=_MAP_LEFT,
        side=side,
        edge=side * len(section.rows),
        cells=cells,
        rows=_names(section.rows, side, 0.0),
        columns=_names(section.columns, side, _MAP_LEFT),
    )


def _names(names: Sequence[str], side: float, start: float) -> tuple[Tick, ...]:
    step = max(1, math.ceil(_LEAST_LABEL / side))
    return tuple(
        Tick(start + side * (place + 0.5), printable(name, limit=18))
        for place, name in enumerate(names)
        if place % step == 0
    )


def _name(text: str) -> str:
    return printable(text, limit=80)


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
        Tick(_TOP + _PLOT_HEIGHT * (1 - quarter / 4), tick_text(top * quarter / 4, top / 4))
        for quarter in range(5)
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
