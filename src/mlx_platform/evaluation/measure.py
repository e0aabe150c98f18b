"""Metrics with their intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlx_platform.core.statistics import Interval, wilson
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.evaluation.metric import Metric, Parts
from mlx_platform.evaluation.metrics import metric_of, usual_metrics
from mlx_platform.evaluation.resample import (
    RESAMPLES,
    Blocks,
    Codes,
    Draws,
    Resampled,
    block_limit,
    draw,
    make_blocks,
)
from mlx_platform.evaluation.scored import Classified, Scored, Tagged, effective
from mlx_platform.evaluation.truth import score


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number with its two-sided interval; ends are NaN where no interval can be given.

    `reason` says why the value is NaN; it is empty for a number that was measured. `method` says how the
    interval was made.
    """

    name: str
    value: float
    lower: float
    upper: float
    rows: int
    unit: str = ""
    higher_is_better: bool | None = None
    reason: str = ""
    method: str = ""


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
    """Measure by name; the usual metrics of the task when none is named.

    Shares of independent rows have the Wilson score interval, with as many trials as the weights of the rows
    are worth: (sum w)^2 / sum w^2. Everything else has a bias-corrected and accelerated bootstrap: of rows,
    or of groups where rows belong to some. The largest error has none, since resampling says nothing about
    what lies beyond the rows.

    Raises:
        UsageError: a metric is unknown, or the task does not have it.
    """
    wanted = wanted_metrics(scored, metrics)
    resampled = resample_metrics(scored, [one for one in wanted if not _is_share(one, scored)], seed=seed)
    return {
        metric.name: _measurement(metric, scored, resampled.get(metric.name), confidence) for metric in wanted
    }


def wanted_metrics(scored: Scored, metrics: Sequence[str | Metric] | None) -> tuple[Metric, ...]:
    """Metrics by name or as they are; the usual ones when None.

    Raises:
        UsageError: a metric is unknown, the task does not have it, or it is about an unknown class.
    """
    if metrics is None:
        return usual_metrics(scored)
    labels = labels_of(scored)
    return tuple(
        metric_of(one, scored.task, labels=labels) if isinstance(one, str) else one for one in metrics
    )


def labels_of(scored: Scored) -> tuple[str, ...]:
    """The names of the classes, their codes where they have none; () where there are no classes."""
    if not isinstance(scored, Classified | Tagged):
        return ()
    return scored.labels or tuple(str(code) for code in range(scored.classes))


def resample_metrics(scored: Scored, metrics: Sequence[Metric], *, seed: int) -> dict[str, Resampled]:
    """Metrics by name with the values they take on resamples; those that cannot be resampled are left out.

    Rows are drawn, or whole groups where rows belong to some, and no class is lost on the way. Two sets of
    answers to the same rows get the same resamples from the same metrics and seed, so `Resampled.combine`
    makes paired differences of them.
    """
    sampler = _Sampler(scored, seed)
    sharing: dict[Parts, list[Metric]] = {}
    found: dict[str, Resampled] = {}
    for metric in metrics:
        if metric.obstacle(scored) or scored.units < _LEAST_UNITS:
            continue
        if metric.parts is not None:
            sharing.setdefault(metric.parts, []).append(metric)
        elif metric.by_rows:
            found[metric.name] = _resample_rows(metric, scored, sampler)
    for parts, family in sharing.items():
        blocks, draws = sampler.of(family[0])
        resampled = draws.apply(parts(scored, blocks), [metric.value for metric in family])
        for metric, one in zip(family, resampled, strict=True):
            found[metric.name] = one if metric.exact is None else one.moved_to(metric.exact(scored))
    return found


_LEAST_UNITS = 2
_RARE = 20  # blocks: a class in more of them is as good as never missed
_CALLED_ROWS = 20_000_000  # rows that a function of the project's own is given in all
_LEAST_CALLS = 200


class _Sampler:
    """Blocks and draws for metrics of one set of rows, made once for all that need the same."""

    def __init__(self, scored: Scored, seed: int) -> None:
        self._scored = scored
        self._seed = seed
        self._made: dict[int, tuple[Blocks, Draws]] = {}

    def of(self, metric: Metric) -> tuple[Blocks, Draws]:
        scored = self._scored
        # As many blocks as rows or groups, where they are few, are the same ones for every metric.
        count = min(block_limit(metric.width(scored) if metric.width else 1), scored.units)
        if count not in self._made:
            blocks = make_blocks(
                scored.rows, most=count, seed=self._seed, groups=scored.drawn_by, weights=scored.weights
            )
            self._made[count] = blocks, draw(blocks.count, seed=self._seed, kept=_rare(scored, blocks))
        return self._made[count]


def _rare(scored: Scored, blocks: Blocks) -> list[Codes]:
    """The blocks of each class that few of them hold."""
    if not isinstance(scored, Classified):
        return []
    order = np.argsort(scored.truth, kind="stable")
    counts = np.bincount(scored.truth, minlength=scored.classes)
    ends = np.cumsum(counts)
    # A class with many rows may still lie in few blocks, where rows belong to groups.
    sparse = counts > 0 if scored.groups is not None else (counts > 0) & (counts < _RARE)
    places = [np.unique(blocks.index[order[ends[c] - counts[c] : ends[c]]]) for c in np.flatnonzero(sparse)]
    return [held for held in places if len(held) < _RARE]


def _resample_rows(metric: Metric, scored: Scored, sampler: _Sampler) -> Resampled:
    blocks, draws = sampler.of(metric)
    calls = min(max(_CALLED_ROWS // scored.rows, _LEAST_CALLS), RESAMPLES)
    return draws.call(lambda rows: metric.of(scored.take(rows)), blocks, resamples=calls)


def _is_share(metric: Metric, scored: Scored) -> bool:
    """Whether the rows are trials that are independent of each other."""
    return metric.trials is not None and scored.groups is None


def _measurement(
    metric: Metric, scored: Scored, resampled: Resampled | None, confidence: float
) -> Measurement:
    value = metric.of(scored)
    interval, method = Interval(math.nan, math.nan), ""
    reason = "" if math.isfinite(value) else metric.obstacle(scored) or metric.undefined
    if reason:
        value = math.nan
    elif metric.trials is not None and scored.groups is None:
        counted = metric.trials(scored).counted
        trials = float(counted.sum()) if scored.weights is None else effective(scored.weights[counted])
        interval, method = wilson(value * trials, trials, confidence), "Wilson"
    elif resampled is not None:
        drawn = "rows" if scored.drawn_by is None else f"{scored.units:,} groups"
        interval, method = (
            resampled.interval(confidence),
            f"BCa, {len(resampled.draws):,} resamples of {drawn}",
        )
    return Measurement(
        name=metric.name,
        value=value,
        lower=interval.lower,
        upper=interval.upper,
        rows=scored.rows,
        unit=metric.unit,
        higher_is_better=metric.higher_is_better,
        reason=reason,
        method="" if math.isnan(interval.lower) else method,
    )
