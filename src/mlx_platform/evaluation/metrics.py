"""Metrics, each a function of column sums over the rows: that makes resampling them cheap.

Values equal those of scikit-learn's functions of the same name. They are computed here because an interval
needs them a thousand times, on weights rather than on rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.resample import Blocks, Floats
from mlx_platform.evaluation.scored import Classified, Predicted, Scored

Kind = Literal["rate", "score", "loss"]
_ECE_BINS = 15


Parts = Callable[[Any, Blocks], Floats]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number about answers beside the truth.

    Attributes:
        unit: `share` for what lies between 0 and 1, so that percentage points have a meaning; else as shown.
        higher_is_better: None where neither direction is better, as with a bias.
        parts: from the scored rows and their blocks to sums [blocks, k]; None when rows cannot be added up.
        value: from sums [..., k] to values [...]; NaN where the metric is not defined.
        undefined: what is missing when the value is NaN.
    """

    name: str
    task: Literal["classification", "regression"]
    unit: str
    higher_is_better: bool | None
    kind: Kind
    parts: Parts | None
    value: Callable[[Any], Any]
    undefined: str = "it is not a number"
    needs_probabilities: bool = False

    @property
    def sign(self) -> float:
        """What turns a difference into a gain: -1 where lower is better."""
        return -1.0 if self.higher_is_better is False else 1.0

    def of(self, scored: Scored) -> float:
        """The metric over all rows."""
        if self.needs_probabilities and isinstance(scored, Classified) and scored.probabilities is None:
            return float("nan")
        if self.parts is None:
            return float(self.value(scored))
        everything = Blocks(np.zeros(scored.rows, np.int64), 1, scored.weights)
        return float(self.value(self.parts(scored, everything))[0])


def _divide(numerator: Floats, denominator: Floats, empty: float) -> Floats:
    filled = np.full(np.broadcast(numerator, denominator).shape, empty)
    quotient: Floats = np.divide(numerator, denominator, out=filled, where=denominator != 0)
    return quotient


def _class_counts(scored: Classified, blocks: Blocks) -> Floats:
    """Rows per true class, per answered class, and right answers per class: [blocks, 3 * classes]."""
    hit = scored.truth == scored.answer
    return np.concatenate(
        [
            blocks.counts(scored.truth, scored.classes),
            blocks.counts(scored.answer, scored.classes),
            blocks.counts(scored.truth, scored.classes, hit),
        ],
        axis=1,
    )


def _split(sums: Floats) -> tuple[Floats, Floats, Floats]:
    true, answered, hits = np.split(sums, 3, axis=-1)
    return true, answered, hits


def _accuracy(sums: Floats) -> Floats:
    true, _answered, hits = _split(sums)
    return _divide(hits.sum(-1), true.sum(-1), np.nan)


def _macro(scores: Floats, present: npt.NDArray[np.bool_], true: Floats) -> Floats:
    # An average over classes says nothing about a truth that holds one class only.
    count = np.where((true > 0).sum(-1) > 1, present.sum(-1), 0)
    return _divide((scores * present).sum(-1), count, np.nan)


def _balanced_accuracy(sums: Floats) -> Floats:
    true, _answered, hits = _split(sums)
    return _macro(_divide(hits, true, 0.0), true > 0, true)


def _recall_macro(sums: Floats) -> Floats:
    true, answered, hits = _split(sums)
    return _macro(_divide(hits, true, 0.0), true + answered > 0, true)


def _precision_macro(sums: Floats) -> Floats:
    true, answered, hits = _split(sums)
    return _macro(_divide(hits, answered, 0.0), true + answered > 0, true)


def _f1_macro(sums: Floats) -> Floats:
    true, answered, hits = _split(sums)
    return _macro(_divide(2 * hits, true + answered, 0.0), true + answered > 0, true)


def _probabilities(scored: Classified) -> Floats:
    if scored.probabilities is None:
        raise ValueError("the metric needs probabilities")
    return scored.probabilities


def row_log_loss(scored: Classified) -> Floats:
    """The negative log probability of the true class [rows], in nats."""
    true = _probabilities(scored)[np.arange(scored.rows), scored.truth]
    # A probability of zero for what happened must cost much, not everything.
    return -np.log(np.clip(true, np.finfo(np.float64).eps, 1.0))


def _row_brier(scored: Classified) -> Floats:
    error = _probabilities(scored).copy()
    error[np.arange(scored.rows), scored.truth] -= 1.0
    squares: Floats = (error**2).sum(axis=1)
    # With two classes both errors are the same one, seen twice.
    return squares / 2 if scored.classes == 2 else squares


def _log_loss_parts(scored: Classified, blocks: Blocks) -> Floats:
    return blocks.sums(np.ones(scored.rows), row_log_loss(scored))


def _brier_parts(scored: Classified, blocks: Blocks) -> Floats:
    return blocks.sums(np.ones(scored.rows), _row_brier(scored))


def _ece_parts(scored: Classified, blocks: Blocks) -> Floats:
    """Rows, confidence and right answers by bin of confidence: [blocks, 3 * bins]."""
    confidence = _probabilities(scored)[np.arange(scored.rows), scored.answer]
    bins = np.clip(np.nan_to_num(np.ceil(confidence * _ECE_BINS)) - 1, 0, _ECE_BINS - 1).astype(np.int64)
    hit = scored.truth == scored.answer
    return blocks.counts(bins, _ECE_BINS, np.ones(scored.rows), confidence, hit)


def _ece(sums: Floats) -> Floats:
    """The expected calibration error over 15 bins of equal width (Guo et al., ICML 2017)."""
    rows, confidence, hits = _split(sums)
    return _divide(np.abs(hits - confidence).sum(-1), rows.sum(-1), np.nan)


def _error_parts(scored: Predicted, blocks: Blocks) -> Floats:
    """Rows, error, absolute error, squared error, and the centred truth with its square: [blocks, 6]."""
    error = scored.answer - scored.truth
    centred = scored.truth - scored.truth.mean()
    return blocks.sums(np.ones(scored.rows), error, np.abs(error), error**2, centred, centred**2)


def _mean(column: int) -> Callable[[Floats], Floats]:
    return lambda sums: _divide(sums[..., column], sums[..., 0], np.nan)


def _rmse(sums: Floats) -> Floats:
    return np.sqrt(_mean(3)(sums))


def _r2(sums: Floats) -> Floats:
    rows, squared = sums[..., 0], sums[..., 3]
    spread = sums[..., 5] - _divide(sums[..., 4] ** 2, rows, np.nan)
    # What rounding leaves of a constant truth is no spread.
    spread = np.where(spread > 1e-12 * np.maximum(sums[..., 5], 1e-300), spread, 0.0)
    return 1.0 - _divide(squared, spread, np.nan)


def _max_error(scored: Predicted) -> float:
    return float(np.abs(scored.answer - scored.truth).max(initial=0.0)) if scored.rows else float("nan")


_ONE_CLASS = "the truth must hold at least two classes"
_NO_PROBABILITIES = "the answers carry no finite probabilities"


def _classification(
    name: str,
    unit: str,
    kind: Kind,
    parts: Parts,
    value: Callable[[Floats], Floats],
    undefined: str,
) -> Metric:
    probabilistic = undefined == _NO_PROBABILITIES
    return Metric(name, "classification", unit, kind != "loss", kind, parts, value, undefined, probabilistic)


_ALL = (
    _classification("accuracy", "share", "rate", _class_counts, _accuracy, "there are no rows"),
    _classification("balanced_accuracy", "share", "score", _class_counts, _balanced_accuracy, _ONE_CLASS),
    _classification("precision_macro", "share", "score", _class_counts, _precision_macro, _ONE_CLASS),
    _classification("recall_macro", "share", "score", _class_counts, _recall_macro, _ONE_CLASS),
    _classification("f1_macro", "share", "score", _class_counts, _f1_macro, _ONE_CLASS),
    _classification("log_loss", "nats", "loss", _log_loss_parts, _mean(1), _NO_PROBABILITIES),
    _classification("brier", "", "loss", _brier_parts, _mean(1), _NO_PROBABILITIES),
    _classification("ece", "share", "loss", _ece_parts, _ece, _NO_PROBABILITIES),
    Metric("rmse", "regression", "", False, "loss", _error_parts, _rmse),
    Metric("mae", "regression", "", False, "loss", _error_parts, _mean(2)),
    Metric("r2", "regression", "", True, "score", _error_parts, _r2, "the truth must vary"),
    Metric("bias", "regression", "", None, "loss", _error_parts, _mean(1)),
    Metric("max_error", "regression", "", False, "loss", None, _max_error),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}


def metrics_of(task: str) -> tuple[Metric, ...]:
    """The metrics of a task, the primary one first; none for a task whose outputs have no known meaning."""
    return tuple(metric for metric in _ALL if metric.task == task)


def metric_of(name: str, task: str) -> Metric:
    """A metric by name.

    Raises:
        UsageError: there is no such metric, or the task does not have it.
    """
    metric = METRICS.get(name)
    if metric is None:
        raise UsageError(f"There is no metric {printable(name)!r}.", hint=did_you_mean(name, METRICS))
    if metric.task != task:
        known = ", ".join(metric.name for metric in metrics_of(task)) or "none"
        raise UsageError(
            f"The metric {name!r} belongs to {metric.task}, and this is a model for {task}.",
            hint=f"Its metrics: {known}.",
        )
    return metric


def confusion(scored: Classified) -> Array:
    """Counts [true class, answered class]."""
    cells = np.bincount(scored.truth * scored.classes + scored.answer, minlength=scored.classes**2)
    return cells.reshape(scored.classes, scored.classes)
