"""Labelled live answers measured: over the window, by day and slice, and against what was measured before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.statistics import ks_two_sample
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.gate_parser import parse_expression
from mlx_platform.evaluation.gates import SYSTEM_METRICS, GateFile
from mlx_platform.evaluation.judge import Judged
from mlx_platform.evaluation.measure import Measurement, measure_scored
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import metric_of
from mlx_platform.evaluation.online import Estimate, Gap, judge_gap
from mlx_platform.evaluation.scored import Scored
from mlx_platform.evaluation.slices import SliceResult
from mlx_platform.evaluation.truth import CLASS_TASKS, model_labels, score, unknown_labels
from mlx_platform.registry.version import EvidenceSummary
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.asking import DEFAULT_GATES
from mlx_platform.workflows.evaluation.comparing import Compared, metrics_for
from mlx_platform.workflows.evaluation.slicing import judge_all
from mlx_platform.workflows.online.days import Calendar, Day
from mlx_platform.workflows.online.joined import Joined
from mlx_platform.workflows.subject import Subject

_SHIFTED, _SURE = 0.1, 0.01
"""Scores of labelled rows are another sample than the rest from this distance on, with this p-value."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of live answers.

    Attributes:
        task: what the answers are measured as.
        asked: gates that need no baseline, the level and the dataset's rules.
        margin: the tolerated difference as it was written; empty takes two points, or two per cent of the
            offline value where a metric is no share.
        metrics: those that are compared with the offline evidence; () takes the task's own.
        shown: columns whose slices are shown.
        custom: metrics of the project's own.
    """

    task: str
    asked: GateFile
    margin: str = ""
    metrics: tuple[str, ...] = ()
    shown: tuple[tuple[str, ...], ...] = ()
    custom: Mapping[str, Metric] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shift:
    """How far the scores of labelled rows are from those of the others."""

    distance: float
    p_value: float
    medians: tuple[float, float]

    @property
    def matters(self) -> bool:
        return self.distance > _SHIFTED and self.p_value < _SURE


@dataclass(frozen=True, slots=True)
class Online:
    """What was found out about a version on labelled live traffic; nothing is measured without a label.

    `gaps` are judged, `others` are those of further metrics that the offline evaluation has as well.
    """

    subject: Subject
    joined: Joined
    offline: EvidenceSummary | None
    measurements: Mapping[str, Measurement]
    gaps: Mapping[str, Gap | None]
    others: Mapping[str, Gap] = field(default_factory=dict)
    judged: tuple[Judged, ...] = ()
    slices: tuple[SliceResult, ...] = ()
    days: tuple[Day, ...] = ()
    shift: Shift | None = None
    unknown: tuple[str, ...] = ()
    unusable: int = 0

    @property
    def failing_days(self) -> tuple[tuple[Day, str, Gap], ...]:
        return tuple(
            (day, metric, gap)
            for day in self.days
            for metric, gap in day.gaps.items()
            if gap.verdict is Verdict.FAIL
        )


def without_baseline(asked: GateFile) -> GateFile:
    """The gates that need no second set of answers: those on values. The rest is what the gap is about."""
    gates = tuple(
        gate
        for gate in asked.gates
        if not gate.needs_baseline and not gate.guard and gate.metric not in SYSTEM_METRICS
    )
    return replace(asked, gates=gates)


def measure_online(
    context: Context, subject: Subject, joined: Joined, question: Question, offline: EvidenceSummary | None
) -> Online:
    """Measure what was joined.

    Raises:
        UsageError: a metric that the task does not have, a margin that is none, or a column that makes no
            slices.
    """
    rows, unusable = _usable(joined, question.task)
    if not len(rows):
        names = question.metrics or (_default_metric(question.task),)
        return Online(subject, joined, offline, {}, dict.fromkeys(names), unusable=unusable)
    scored, labels, unknown = _scored(joined, question, subject, rows)
    defaults = question.asked.defaults
    metrics = metrics_for(scored, question.asked.gates, labels, dict(question.custom))
    compared = _compared_metrics(question, scored, metrics, labels)
    with context.progress.stage(f"measuring {subject.ref}"):
        measurements = measure_scored(
            scored, metrics=list(metrics.values()), confidence=defaults.confidence, seed=defaults.seed
        )
    together = Compared(scored, labels, metrics, measurements)
    columns = {name: column[rows] for name, column in joined.columns.items()}
    judged, slices = judge_all(context, together, columns, question.asked, question.shown)
    base = {name: _offline(offline, name) for name in measurements}
    margins = {
        name: _margin(metric, question.margin if name in compared else "") for name, metric in metrics.items()
    }
    worth = scored.effective_rows
    gaps = {
        name: judge_gap(Estimate.of(measurements[name], defaults.confidence), known, margins[name], worth)
        for name, known in base.items()
        if known is not None
    }
    calendar = Calendar(
        scored, [metrics[name] for name in compared], defaults.confidence, defaults.seed, base, margins
    )
    return Online(
        subject=subject,
        joined=joined,
        offline=offline,
        measurements=measurements,
        gaps={name: gaps.get(name) for name in compared},
        others={name: gap for name, gap in gaps.items() if name not in compared},
        judged=judged,
        slices=slices,
        days=calendar.measure(joined, rows),
        shift=_shift(joined),
        unknown=unknown,
        unusable=unusable,
    )


def _usable(joined: Joined, task: str) -> tuple[Array, int]:
    """The rows whose label a metric of the task can take, and how many others there are."""
    every = np.arange(len(joined.truth))
    if task in CLASS_TASKS:
        return every, 0
    good = np.array([_is_number(cell) for cell in joined.truth.tolist()], dtype=bool)
    return every[good], int((~good).sum())


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool) and bool(np.isfinite(cell))


def _scored(
    joined: Joined, question: Question, subject: Subject, rows: Array
) -> tuple[Scored, tuple[str, ...], tuple[str, ...]]:
    """Truth and answers side by side; labels that the model does not know are classes it never answers."""
    truth = joined.truth[rows]
    answers = {name: column[rows] for name, column in joined.answers.items()}
    labels: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    if question.task in CLASS_TASKS:
        labels = model_labels(answers, subject.package.spec.labels)
        unknown = unknown_labels(truth, labels, several=question.task == "multilabel")
    weights = joined.weights[rows]
    requests = joined.requests[rows]
    rules = question.asked.dataset
    scored = score(
        question.task,
        truth,
        answers,
        labels,
        among=(*labels, *unknown),
        weights=None if len(set(weights.tolist())) == 1 else weights,
        groups=None if len(np.unique(requests)) == len(requests) else requests,
        queries=joined.columns[rules.query][rows] if rules.query else None,
        positive=rules.positive,
    )
    return scored, labels, unknown


def _default_metric(task: str) -> str:
    return parse_expression(DEFAULT_GATES[task]).metric


def _compared_metrics(
    question: Question, scored: Scored, metrics: dict[str, Metric], labels: Sequence[str]
) -> tuple[str, ...]:
    """The metrics that are compared with the offline ones; adds them to those that are measured."""
    names = question.metrics or (_default_metric(question.task),)
    for name in names:
        if name not in metrics:
            metrics[name] = metric_of(name, scored.task, custom=dict(question.custom), labels=labels or None)
    return tuple(dict.fromkeys(names))


def _margin(metric: Metric, text: str) -> Margin:
    """The tolerated difference, in the grammar of gates; two points or two per cent where nothing is said."""
    share = metric.unit == "share"
    if not text:
        return Margin(0.02, relative=not share)
    try:
        # A gate on some metric of the same unit: here either direction counts.
        margin = parse_expression(f"{'accuracy:max_drop' if share else 'rmse:max_rise'}={text}").margin
    except UsageError:
        margin = None
    if margin is None:
        unit = "a share" if share else "no share"
        raise UsageError(
            f"--max-difference {printable(text, 40)!r} is no difference of {metric.name}, which is {unit}.",
            hint="Write 2pp or 2%rel." if share else "Write 2%rel, or an amount in its unit.",
        )
    return margin


def _offline(summary: EvidenceSummary | None, metric: str) -> Estimate | None:
    if summary is None:
        return None
    level = summary.judged.get("confidence", 0.95)
    usable = isinstance(level, float) and 0 < level < 1
    return Estimate.read(summary.numbers, metric, level if usable else 0.95)


def _shift(joined: Joined) -> Shift | None:
    labelled, others = joined.scores
    if not len(labelled) or not len(others):
        return None
    distance, p_value = ks_two_sample(labelled, others)
    return Shift(distance, p_value, (float(np.median(labelled)), float(np.median(others))))
