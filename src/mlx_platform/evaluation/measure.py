"""Metrics with their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_platform.core.statistics import Interval, wilson
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.evaluation.metrics import Classified, Metric, Parts, Scored, metric_of, metrics_of
from mlx_platform.evaluation.resample import Floats, Sums, make_blocks, resample
from mlx_platform.evaluation.truth import score


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with its two-sided interval; ends are NaN where no interval can be given.

    `reason` says why the value is NaN; it is empty for a number that was measured.
    """

    name: str
    value: float
    lower: float
    upper: float
    rows: int
    unit: str = ""
    higher_is_better: bool | None = None
    reason: str = ""


def measure(
    task: str,
    truth: Array,
    answers: Columns,
    *,
    labels: Sequence[str] = (),
    metrics: Sequence[str] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    column: str = "label",
) -> dict[str, Measurement]:
    """Measure answers against a truth column; see `score` for the arguments and `measure_scored`."""
    scored = score(task, truth, answers, labels, column=column)
    return measure_scored(scored, metrics=metrics, confidence=confidence, seed=seed)


def measure_scored(
    scored: Scored, *, metrics: Sequence[str] | None = None, confidence: float = 0.95, seed: int = 0
) -> dict[str, Measurement]:
    """Measure by name; all metrics of the task when none is named.

    Rates have the Wilson score interval, everything else a bias-corrected and accelerated bootstrap; the
    largest error has none, since resampling says nothing about what lies beyond the rows.

    Raises:
        UsageError: a metric is unknown, or the task does not have it.
    """
    task = "classification" if isinstance(scored, Classified) else "regression"
    wanted = metrics_of(task) if metrics is None else tuple(metric_of(name, task) for name in metrics)
    sums = resample(block_sums(scored, [m for m in wanted if m.kind != "rate"], seed), seed=seed)
    return {metric.name: _measurement(metric, scored, sums, confidence) for metric in wanted}


def block_sums(scored: Scored, metrics: Sequence[Metric], seed: int) -> dict[Parts, Floats]:
    """The sums that the metrics are made of, once for all metrics that share them."""
    width = 3 * scored.classes if isinstance(scored, Classified) else 1
    blocks = make_blocks(scored.rows, width=width, seed=seed)
    parts = {metric.parts for metric in metrics if metric.parts is not None and can_measure(metric, scored)}
    return {part: part(scored, blocks) for part in parts}


def can_measure(metric: Metric, scored: Scored) -> bool:
    """Whether the answers carry what the metric looks at."""
    return not (
        metric.needs_probabilities and isinstance(scored, Classified) and scored.probabilities is None
    )


def _measurement(metric: Metric, scored: Scored, sums: dict[Parts, Sums], confidence: float) -> Measurement:
    value = metric.of(scored)
    interval = Interval(math.nan, math.nan)
    reason = "" if math.isfinite(value) else metric.undefined
    if reason:
        value = math.nan
    elif metric.kind == "rate":
        interval = wilson(value * scored.rows, scored.rows, confidence)
    elif metric.parts is not None and scored.rows > 1:
        interval = sums[metric.parts].apply(metric.value).interval(confidence)
    return Measurement(
        name=metric.name,
        value=value,
        lower=interval.lower,
        upper=interval.upper,
        rows=scored.rows,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        reason=reason,
    )
