"""Dots with whiskers as small drawings, one for each line of a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_platform.core.report import Span, Spans
from mlx_platform.workflows.reports.scale import Scale, Tick, scale_of

WIDTH, HEIGHT = 320.0, 26.0
_EDGE = 16.0
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Whisker:
    """A span in SVG units; None where there is nothing to draw. `ticks` are its own ends, if it has them."""

    span: Span
    value: float | None
    lower: float | None
    upper: float | None
    baseline: float | None
    threshold: float | None
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Whiskers:
    """All lines of a drawing; `ticks` are of the scale that they share."""

    lines: tuple[Whisker, ...]
    ticks: tuple[Tick, ...]
    baseline: bool
    threshold: bool


def draw_spans(section: Spans) -> Whiskers:
    """Lay out every span on the common scale, or each on its own, from its lowest mark to its highest."""
    common = scale_of(_marks(section.spans), _EDGE, WIDTH - _EDGE) if section.shared else None
    return Whiskers(
        lines=tuple(_whisker(span, common) for span in section.spans),
        ticks=common.ticks(_TICKS) if common else (),
        baseline=any(math.isfinite(span.baseline) for span in section.spans),
        threshold=any(math.isfinite(span.threshold) for span in section.spans),
    )


def _marks(spans: Sequence[Span]) -> list[float]:
    return [
        mark
        for span in spans
        for mark in (span.value, span.lower, span.upper, span.baseline, span.threshold)
        if math.isfinite(mark)
    ]


def _whisker(span: Span, common: Scale | None) -> Whisker:
    marks = _marks([span])
    scale = common or scale_of(marks, _EDGE, WIDTH - _EDGE)

    def place(value: float) -> float | None:
        return scale(value) if math.isfinite(value) else None

    alone = common is None and len(set(marks)) > 1
    return Whisker(
        span,
        place(span.value),
        place(span.lower),
        place(span.upper),
        place(span.baseline),
        place(span.threshold),
        ticks=_ends(scale) if alone else (),
    )


def _ends(scale: Scale) -> tuple[Tick, ...]:
    ticks = scale.ticks(5)
    return (ticks[0], ticks[-1]) if len(ticks) > 1 else ticks
