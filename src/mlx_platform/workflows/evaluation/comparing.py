"""Answers brought beside the truth, measured, and compared with the other versions' answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlx_platform.evaluation.compare import Comparison, compare
from mlx_platform.evaluation.gates import PAIR_METRICS, SYSTEM_METRICS, Defaults, Gate, GateFile
from mlx_platform.evaluation.judge import Known
from mlx_platform.evaluation.latency import Timings
from mlx_platform.evaluation.measure import Measurement, measure_scored
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import metric_of, usual_metrics
from mlx_platform.evaluation.ratio import Ratio
from mlx_platform.evaluation.scored import Scored
from mlx_platform.evaluation.truth import score
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.baseline import Others
from mlx_platform.workflows.evaluation.rows import Answered, Rows
from mlx_platform.workflows.subject import Subject

_NAN = float("nan")
_SIZE = "model_size_mb"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the subject was compared with."""

    ref: str
    digest: str
    scored: Scored
    measurements: dict[str, Measurement]


@dataclass(frozen=True, slots=True)
class Guard:
    """What gates compare with besides the baseline."""

    name: str
    ref: str
    digest: str
    scored: Scored
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Compared:
    """All that the gates about all rows are answered by.

    Attributes:
        scored: the candidate's answers beside the truth.
        labels: of all models.
        metrics: by name: those that are measured unasked, and those that gates are about.
        measurements: of the candidate.
        baseline: None when there is none.
        comparison: with the baseline.
        guards: what else is compared with.
        ratios: candidate over baseline of sizes and latencies.
        timings: that the latencies are made of; None where nobody asked.
    """

    scored: Scored
    labels: tuple[str, ...]
    metrics: Mapping[str, Metric]
    measurements: dict[str, Measurement]
    baseline: Baseline | None = None
    comparison: Comparison | None = None
    guards: tuple[Guard, ...] = ()
    ratios: dict[str, Ratio] = field(default_factory=dict)
    timings: Timings | None = None

    @property
    def known(self) -> Known:
        """As the gates take it."""
        guards = {guard.name: guard.comparison for guard in self.guards}
        return Known(self.measurements, self.comparison, guards, self.ratios)


def compare_all(
    context: Context,
    subject: Subject,
    others: Others,
    rows: Rows,
    answered: Sequence[Answered],
    *,
    asked: GateFile,
    task: str,
    custom: Mapping[str, Metric],
) -> Compared:
    """Measure the subject, and compare it with the others on the same rows.

    Args:
        context: the command's context.
        subject: what is evaluated.
        others: what it is compared with.
        rows: the truth, and what belongs to each row.
        answered: of the subject, then of `others.all`.
        asked: the gates.
        task: what the answers are measured as.
        custom: metrics of the project's own, which are always measured.

    Raises:
        UsageError: a truth that no model knows, or a gate on a metric or class that there is not.
    """
    labels = tuple(dict.fromkeys(label for one in answered for label in one.labels))
    scored, *sides = (_score(task, rows, one, labels, asked) for one in answered)
    metrics = metrics_for(scored, asked.gates, labels, custom)
    meter = _Meter(context, subject, scored, metrics, asked.defaults)
    measurements = meter.measure(subject, scored)
    baseline = comparison = None
    if others.baseline is not None:
        other = others.baseline
        measured = meter.measure(other, sides[0])
        baseline = Baseline(other.ref, other.package.digest, sides[0], measured)
        comparison = meter.compare(other, sides[0], metrics)
    guards = []
    for (name, other), side in zip(others.guards.items(), sides[1 if others.baseline else 0 :], strict=True):
        wanted = {gate.metric for gate in asked.gates if gate.guard == name}
        same = baseline is not None and comparison is not None and baseline.digest == other.package.digest
        met = comparison if same else meter.compare(other, side, {key: metrics[key] for key in wanted})
        if met is not None:
            guards.append(Guard(name, other.ref, other.package.digest, side, met))
    ratios = {}
    if others.baseline is not None and comparison is not None and not comparison.identical:
        ratios[_SIZE] = _size_ratio(subject, others.baseline)
    return Compared(scored, labels, metrics, measurements, baseline, comparison, tuple(guards), ratios)


@dataclass(frozen=True, slots=True)
class _Meter:
    """Measures and compares everything by the same rules."""

    context: Context
    subject: Subject
    scored: Scored
    metrics: Mapping[str, Metric]
    defaults: Defaults

    def measure(self, subject: Subject, scored: Scored) -> dict[str, Measurement]:
        with self.context.progress.stage(f"measuring {subject.ref}"):
            found = measure_scored(
                scored,
                metrics=list(self.metrics.values()),
                confidence=self.defaults.confidence,
                seed=self.defaults.seed,
            )
        return found | {_SIZE: _size(subject, scored.rows)}

    def compare(self, other: Subject, scored: Scored, metrics: Mapping[str, Metric]) -> Comparison:
        with self.context.progress.stage(f"comparing with {other.ref}"):
            return compare(
                self.scored,
                scored,
                metrics=list(metrics.values()),
                confidence=self.defaults.confidence,
                seed=self.defaults.seed,
                identical=other.package.digest == self.subject.package.digest,
            )


def _score(task: str, rows: Rows, answered: Answered, labels: tuple[str, ...], asked: GateFile) -> Scored:
    return score(
        task,
        rows.truth,
        answered.columns,
        answered.labels,
        among=labels,
        column=rows.label,
        weights=rows.weights,
        groups=rows.groups,
        queries=rows.queries,
        positive=asked.dataset.positive,
    )


def metrics_for(
    scored: Scored, gates: Sequence[Gate], labels: tuple[str, ...], custom: Mapping[str, Metric]
) -> dict[str, Metric]:
    """What is measured: the usual metrics, the project's own, and those that gates are about."""
    found = {metric.name: metric for metric in usual_metrics(scored)} | dict(custom)
    for gate in gates:
        if gate.metric not in found and gate.metric not in (*PAIR_METRICS, *SYSTEM_METRICS):
            found[gate.metric] = metric_of(gate.metric, scored.task, custom=custom, labels=labels or None)
    return found


def _size(subject: Subject, rows: int) -> Measurement:
    return Measurement(_SIZE, subject.package.size / 1e6, _NAN, _NAN, rows, "MB", higher_is_better=False)


def _size_ratio(subject: Subject, other: Subject) -> Ratio:
    new, old = subject.package.size / 1e6, other.package.size / 1e6
    return Ratio(new / old, _NAN, _NAN, new, old)
