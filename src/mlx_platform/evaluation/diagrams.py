"""What reports draw of answers: calibration, curves, errors. Small, however many rows there are."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mlx_platform.core.statistics import wilson
from mlx_platform.core.tensors import Array
from mlx_platform.evaluation.resample import Codes, Floats
from mlx_platform.evaluation.scored import Classified, Mask, Predicted, Tagged, effective

_BINS = 15
_GRID = 200
_TAIL = 0.005
_DRAWN = 1000


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows whose probability lies above `lower` and up to `upper`.

    Attributes:
        lower: of the bin; the first one holds zero as well.
        upper: of the bin.
        rows: how many there are.
        predicted: mean probability; NaN without rows.
        observed: the share of them for which it came true; NaN without rows.
        low: of the Wilson interval of `observed`.
        high: likewise.
    """

    lower: float
    upper: float
    rows: int
    predicted: float
    observed: float
    low: float
    high: float


def reliability(scored: Classified | Tagged, confidence: float = 0.95) -> tuple[Bin, ...]:
    """Bins of equal width for a reliability diagram (DeGroot and Fienberg, The Statistician 32, 1983).

    With two classes the probability is that of the positive one. With more it is the confidence in the
    answer, as in the expected calibration error. With tags it is that of each tag of each row.

    Returns:
        () where the answers carry no finite probabilities.
    """
    if scored.probabilities is None or not np.isfinite(scored.probabilities).all():
        return ()
    probability, true, weights = _said(scored, scored.probabilities)
    place = np.clip(np.ceil(probability * _BINS) - 1, 0, _BINS - 1).astype(np.int64)
    return tuple(
        _bin(index, probability[place == index], true[place == index], weights[place == index], confidence)
        for index in range(_BINS)
    )


def _said(scored: Classified | Tagged, probabilities: Floats) -> tuple[Floats, Mask, Floats]:
    """Probabilities, whether they came true, and what each counts; all [n]."""
    weights = np.ones(scored.rows) if scored.weights is None else scored.weights
    if isinstance(scored, Tagged):
        each = np.repeat(weights, scored.classes)
        return probabilities.reshape(-1).astype(np.float64), scored.truth.reshape(-1), each
    if scored.classes == 2:
        of_positive = probabilities[:, scored.positive].astype(np.float64)
        return of_positive, scored.truth == scored.positive, weights
    answered = probabilities[np.arange(scored.rows), scored.answer].astype(np.float64)
    return answered, scored.truth == scored.answer, weights


def _bin(index: int, probability: Floats, true: Mask, weights: Floats, confidence: float) -> Bin:
    lower, upper, total = index / _BINS, (index + 1) / _BINS, float(weights.sum())
    if total <= 0:
        return Bin(lower, upper, len(probability), math.nan, math.nan, math.nan, math.nan)
    observed = float(weights[true].sum()) / total
    trials = effective(weights)
    interval = wilson(observed * trials, trials, confidence)
    predicted = float((weights * probability).sum()) / total
    return Bin(lower, upper, len(probability), predicted, observed, interval.lower, interval.upper)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of a curve from its start to its end [n]."""

    x: tuple[float, ...]
    y: tuple[float, ...]


def roc_curve(scored: Classified) -> Curve | None:
    """Share of the negatives against share of the positives with at least each score.

    Returns:
        None where there are more or fewer than two classes in the truth, or no finite probabilities.
    """
    cumulated = _cumulated(scored)
    if cumulated is None:
        return None
    positive, negative = cumulated
    return _thinned(
        np.concatenate([[0.0], negative / negative[-1]]), np.concatenate([[0.0], positive / positive[-1]])
    )


def precision_curve(scored: Classified) -> Curve | None:
    """Recall against precision of the rows with at least each score; None as for `roc_curve`."""
    cumulated = _cumulated(scored)
    if cumulated is None:
        return None
    positive, negative = cumulated
    precision = positive / (positive + negative)
    return _thinned(
        np.concatenate([[0.0], positive / positive[-1]]), np.concatenate([[precision[0]], precision])
    )


def _cumulated(scored: Classified) -> tuple[Floats, Floats] | None:
    """The weight of positives and of negatives down to each distinct score, the highest first."""
    if scored.classes != 2 or scored.probabilities is None or not np.isfinite(scored.probabilities).all():
        return None
    score, positive = scored.probabilities[:, scored.positive], scored.truth == scored.positive
    weights = np.ones(scored.rows) if scored.weights is None else scored.weights
    _values, codes = np.unique(-score, return_inverse=True)
    found, missed = (
        np.cumsum(np.bincount(codes.reshape(-1), weights * side)).astype(np.float64)
        for side in (positive, ~positive)
    )
    if found[-1] <= 0 or missed[-1] <= 0:
        return None
    # Where the first scores weigh nothing there is no share yet.
    counted = found + missed > 0
    return found[counted], missed[counted]


def _thinned(x: Floats, y: Floats) -> Curve:
    """Without the points that nobody could tell from their neighbours."""
    cells = np.stack([np.floor(x * _GRID), np.floor(y * _GRID)])
    kept = np.ones(len(x), np.bool_)
    kept[1:-1] = (cells[:, 1:-1] != cells[:, :-2]).any(axis=0) | (cells[:, 1:-1] != cells[:, 2:]).any(axis=0)
    return Curve(tuple(x[kept].tolist()), tuple(y[kept].tolist()))


@dataclass(frozen=True, slots=True)
class Residuals:
    """Errors (answer less truth) of a regression.

    Attributes:
        edges: of the histogram's bars [bars + 1]; the outermost bars hold all that lies beyond as well.
        counts: rows of each bar.
        quantiles: of the error, by share.
        answer: of some rows, evenly picked by their answer [n].
        error: of the same rows [n].
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    quantiles: tuple[tuple[float, float], ...]
    answer: tuple[float, ...]
    error: tuple[float, ...]


def residuals(scored: Predicted, bars: int = 30) -> Residuals | None:
    """The errors as a histogram, as quantiles, and as points beside the answers; None without finite ones."""
    error, answer = scored.answer - scored.truth, scored.answer
    known = np.isfinite(error)
    error, answer = error[known], answer[known]
    if not len(error):
        return None
    low, high = np.quantile(error, [_TAIL, 1 - _TAIL])
    if high <= low:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(error, low, high), bars, (low, high))
    order = np.argsort(answer, kind="stable")
    picked = order[np.unique(np.linspace(0, len(order) - 1, min(len(order), _DRAWN)).astype(np.int64))]
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    return Residuals(
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        quantiles=tuple(zip(shares, np.quantile(error, shares).tolist(), strict=True)),
        answer=tuple(answer[picked].tolist()),
        error=tuple(error[picked].tolist()),
    )


@dataclass(frozen=True, slots=True)
class Confused:
    """Rows of one class that were taken for another: how many, and their share of the class."""

    truth: int
    answer: int
    rows: int
    share: float


def most_confused(counts: Array, most: int) -> tuple[Confused, ...]:
    """The pairs of classes that are confused most often, from counts [true class, answered class]."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    pairs: Codes = np.argsort(-wrong, axis=None, kind="stable")[:most]
    found: Iterable[tuple[int, int]] = ((int(pair) // len(wrong), int(pair) % len(wrong)) for pair in pairs)
    return tuple(
        Confused(truth, answer, int(wrong[truth, answer]), float(wrong[truth, answer] / counts[truth].sum()))
        for truth, answer in found
        if wrong[truth, answer]
    )
