"""Metrics with their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_platform.core.statistics import Interval, wilson
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.evaluation.metrics import Metric, Parts, metric_of, metrics_of
from mlx_platform.evaluation.resample import Resampled, draw, make_blocks
from mlx_platform.evaluation.scored import Classified, Scored
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
    metrics: Sequence[str | Metric] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    column: str = "label",
) -> dict[str, Measurement]:
    """Measure answers against a truth column; see `score` for the arguments and `measure_scored`."""
    scored = score(task, truth, answers, labels, column=column)
    return measure_scored(scored, metrics=metrics, confidence=confidence, seed=seed)


def measure_scored(
    scored: Scored, *, metrics: Sequence[str | Metric] | None = None, confidence: float = 0.95, seed: int = 0
) -> dict[str, Measurement]:
    """Measure by name; all metrics of the task when none is named.

    Rates have the Wilson score interval, everything else a bias-corrected and accelerated bootstrap; the
    largest error has none, since resampling says nothing about what lies beyond the rows.

    Raises:
        UsageError: a metric is unknown, or the task does not have it.
    """
    wanted = wanted_metrics(scored, metrics)
    resampled = resample_metrics(scored, [metric for metric in wanted if metric.kind != "rate"], seed=seed)
    return {
        metric.name: _measurement(metric, scored, resampled.get(metric.name), confidence) for metric in wanted
    }


def wanted_metrics(scored: Scored, metrics: Sequence[str | Metric] | None) -> tuple[Metric, ...]:
    """Metrics by name or as they are; all of the task when None.

    Raises:
        UsageError: a metric is unknown, or the task does not have it.
    """
    if metrics is None:
        return metrics_of(scored.task)
    return tuple(metric_of(one, scored.task) if isinstance(one, str) else one for one in metrics)


def resample_metrics(scored: Scored, metrics: Sequence[Metric], *, seed: int) -> dict[str, Resampled]:
    """Metrics by name with the values they take on resamples; those that cannot be resampled are left out.

    Rows are drawn, or whole groups where rows belong to some. Two sets of answers to the same rows get the
    same resamples from the same metrics and seed, so `Resampled.combine` makes paired differences of them.
    """
    width = 3 * scored.classes if isinstance(scored, Classified) else 1
    blocks = make_blocks(scored.rows, width=width, seed=seed, groups=scored.groups, weights=scored.weights)
    sharing: dict[Parts, list[Metric]] = {}
    for metric in metrics:
        if metric.parts is not None and can_measure(metric, scored):
            sharing.setdefault(metric.parts, []).append(metric)
    if blocks.count < 2 or not sharing:
        return {}
    draws = draw(blocks.count, seed=seed)
    found: dict[str, Resampled] = {}
    for parts, family in sharing.items():
        resampled = draws.apply(parts(scored, blocks), [metric.value for metric in family])
        found |= {metric.name: one for metric, one in zip(family, resampled, strict=True)}
    return found


def can_measure(metric: Metric, scored: Scored) -> bool:
    """Whether the answers carry what the metric looks at."""
    return not (
        metric.needs_probabilities and isinstance(scored, Classified) and scored.probabilities is None
    )


def _measurement(
    metric: Metric, scored: Scored, resampled: Resampled | None, confidence: float
) -> Measurement:
    value = metric.of(scored)
    interval = Interval(math.nan, math.nan)
    reason = "" if math.isfinite(value) else metric.undefined
    if reason:
        value = math.nan
    elif metric.kind == "rate":
        interval = wilson(value * scored.rows, scored.rows, confidence)
    elif resampled is not None:
        interval = resampled.interval(confidence)
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
