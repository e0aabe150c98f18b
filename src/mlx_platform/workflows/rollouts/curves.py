"""A rollout over time: the candidate's share, both arms' errors and latency, and the verdict of every look.

Shares come from the journal. The looks lie on the disk of whoever led, so a report has those that can be
reached from where it is written.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mlx_platform.core.report import Drawing, Plot, Points, Section, Table
from mlx_platform.core.settings import Settings
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict
from mlx_platform.serving.rollout.counts import ArmCounts, Window
from mlx_platform.serving.rollout.lookbook import looks_folder, read_looks
from mlx_platform.serving.rollout.verdict import StepVerdict, verdict_from_document
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.rollouts.seen import Seen, document_of, verdict_of_outcome

_UNITS = ((172_800.0, 86_400.0, "days"), (10_800.0, 3600.0, "hours"), (300.0, 60.0, "minutes"))
_NAMES = {"stable": "stable", "canary": "candidate", "shadow": "candidate, copies"}


@frozen
class Look:
    """A look that somebody kept."""

    at: datetime
    step: int
    window: Window
    verdict: StepVerdict
    differences: tuple[Mapping[str, Any], ...] = ()


@frozen
class Axis:
    """Time since the rollout began, in the unit that suits its length."""

    start: datetime
    seconds: float
    unit: str

    @classmethod
    def of(cls, start: datetime, end: datetime) -> "Axis":
        span = (end - start).total_seconds()
        seconds, unit = next(
            ((size, unit) for least, size, unit in _UNITS if span >= least), (1.0, "seconds")
        )
        return cls(start, seconds, unit)

    def __call__(self, moment: datetime) -> float:
        return (moment - self.start).total_seconds() / self.seconds

    @property
    def title(self) -> str:
        return f"{self.unit} since it began"


def curves(context: Context, seen: Seen) -> tuple[Section | Drawing, ...]:
    """What there is to draw of a rollout, for the report."""
    looks = kept_looks(context.settings, seen)
    end = seen.now if seen.rollout.active else seen.events[-1].time
    end = max([end, *(look.at for look in looks)])
    axis = Axis.of(seen.rollout.started_at, end)
    drawn: list[Section | Drawing] = [_shares(seen, axis, end)]
    if looks:
        drawn += _arms(looks, seen, axis, axis(end))
        drawn.append(_look_table(looks, seen))
        if differences := next((look.differences for look in reversed(looks) if look.differences), ()):
            drawn.append(_difference_table(differences))
    return tuple(drawn)


def kept_looks(settings: Settings, seen: Seen) -> tuple[Look, ...]:
    """The looks of a rollout that lie on this machine, oldest first."""
    documents = read_looks(looks_folder(settings), seen.rollout.id)
    found = (look for document in documents if (look := _look(document)) is not None)
    return tuple(sorted(found, key=lambda look: look.at))


def _look(document: Mapping[str, Any]) -> Look | None:
    """A look as it was written; None for what is none."""
    verdict = verdict_from_document(document)
    try:
        at = datetime.fromisoformat(str(document["at"]))
        window = Window.from_document(int(document["window"]), document["arms"])
        step = int(document["step"])
        differences = tuple(each for each in document.get("differences", ()) if isinstance(each, Mapping))
    except (KeyError, TypeError, ValueError):
        return None
    return Look(at, step, window, verdict, differences) if verdict and at.tzinfo else None


def _shares(seen: Seen, axis: Axis, end: datetime) -> Plot:
    """The candidate's share as a staircase, and that of the copies."""
    times: list[float] = []
    weights: list[float] = []
    copies: list[float] = []
    for event in seen.events:
        document = document_of(event)
        weight, copied = (_share(document.get(key)) for key in ("weight", "shadow"))
        if document.get("state") in {"BAKING", "PROMOTED"}:
            weight, copied = 100.0, 0.0
        if times:
            times.append(axis(event.time))
            weights.append(weights[-1])
            copies.append(copies[-1])
        times.append(axis(event.time))
        weights.append(weight)
        copies.append(copied)
    if seen.rollout.active:
        times.append(axis(end))
        weights.append(weights[-1])
        copies.append(copies[-1])
    series = [Points("answered by the candidate", tuple(times), tuple(weights))]
    if any(copies):
        series.append(Points("copied to the candidate", tuple(times), tuple(copies)))
    return Plot("Share of the traffic", axis.title, "% of the requests", tuple(series))


def _share(value: Any) -> float:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value <= 100 else 0.0


def _arms(looks: Sequence[Look], seen: Seen, axis: Axis, end: float) -> list[Plot]:
    """Both arms at every look: what they have counted since their step began."""
    wanted = (
        ("Errors", "% of the requests", _error_rate, _limit(seen, "errors")),
        ("Latency, P50", "milliseconds", lambda arm: 1000 * arm.latency.quantile(0.5), None),
        ("Latency, P99", "milliseconds", lambda arm: 1000 * arm.latency.quantile(0.99), None),
        ("Copies whose answers differ", "% of the copies", _difference, _limit(seen, "disagree")),
    )
    plots = (
        _plot(title, unit, looks, axis, value, end=end, limit=limit) for title, unit, value, limit in wanted
    )
    return [plot for plot in plots if plot is not None]


def _limit(seen: Seen, of: str) -> float | None:
    """The limit of a share in percent, if the plan has one."""
    rules = seen.rollout.plan.metrics
    return next((100 * rule.max for rule in rules if rule.of == of and rule.max is not None), None)


def _error_rate(arm: ArmCounts) -> float:
    return 100 * arm.errors / arm.requests if arm.requests else math.nan


def _difference(arm: ArmCounts) -> float:
    return 100 * arm.disagreed / arm.compared if arm.compared else math.nan


def _plot(
    title: str,
    unit: str,
    looks: Sequence[Look],
    axis: Axis,
    value: Callable[[ArmCounts], float],
    *,
    end: float,
    limit: float | None,
) -> Plot | None:
    series = []
    for arm, name in _NAMES.items():
        points = list(_points(looks, axis, arm, value))
        if any(math.isfinite(y) for _, y in points):
            # What is not finite is not drawn, and still belongs to the scales: all pages begin at 0.
            xs, ys = zip((0.0, math.nan), *points, (end, math.nan), (math.nan, 0.0), strict=True)
            series.append(Points(name, tuple(xs), tuple(ys)))
    guide = None if limit is None else ((0.0, limit), (end, limit))
    note = _NOTE if limit is None else f"{_NOTE} The dashed line is the limit."
    return Plot(title, axis.title, unit, tuple(series), guide=guide, note=note) if series else None


_NOTE = "At each look, counted since its step began; a line ends where the next step does."


def _points(
    looks: Sequence[Look], axis: Axis, arm: str, value: Callable[[ArmCounts], float]
) -> Iterable[tuple[float, float]]:
    window = None
    for look in looks:
        at = axis(look.at)
        if window is not None and look.window.number != window:
            yield at, math.nan
        window = look.window.number
        counts = look.window.arms.get(arm)  # type: ignore[call-overload]  # one of the arms
        yield at, value(counts) if counts else math.nan


def _look_table(looks: Sequence[Look], seen: Seen) -> Table:
    names = list(dict.fromkeys(metric.name for look in looks for metric in look.verdict.metrics))
    rows = tuple(_row(look, names, seen) for look in looks)
    return Table("Looks", ("time", "step", "requests", "verdict", *names), rows, numeric=(2,))


def _row(look: Look, names: Sequence[str], seen: Seen) -> tuple[str | Verdict, ...]:
    steps = seen.rollout.plan.steps
    title = steps[look.step].title if look.step < len(steps) else ""
    found = {metric.name: metric for metric in look.verdict.metrics}
    tried = sum(counts.requests for arm, counts in look.window.arms.items() if arm != "stable")
    cells = [verdict_of_outcome(found[name].outcome) if name in found else "" for name in names]
    when = f"{look.at:%H:%M:%S}Z"
    return (when, title, f"{tried:,}", verdict_of_outcome(look.verdict.outcome), *cells)


def _difference_table(differences: Sequence[Mapping[str, Any]]) -> Table:
    """The copies whose answers are farthest from those of the stable version, one row of each."""
    rows = tuple(
        (printable(str(each.get("request_id", "")), 80), *(_said(each.get(side)) for side in _SIDES))
        for each in differences
    )
    return Table("Where copies were answered otherwise", ("request", "stable", "candidate"), rows)


_SIDES = ("stable", "candidate")


def _said(side: Any) -> str:
    if not isinstance(side, Mapping):
        return ""
    return ", ".join(f"{printable(str(name), 40)} = {_value(value)}" for name, value in side.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value), 80)
