"""Areas under curves of a score: ROC and precision-recall.

The value is exact. For resamples the rows are first sorted into cells of neighbouring scores, in which they
count as tied: then the area is a function of sums, and a thousand resamples cost one matrix product instead
of a thousand passes over the rows. Where there are fewer distinct scores than cells nothing is lost; else the
little that the cells change about the value is taken off the resamples again.
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from mlx_platform.evaluation.metric import ONE_CLASS, Metric, divide
from mlx_platform.evaluation.probability_metrics import probabilities_of
from mlx_platform.evaluation.resample import Blocks, Codes, Floats
from mlx_platform.evaluation.scored import Classified, Mask

_CELLS = 256
_ALL_CELLS = 1024  # of all classes together
_LEAST_CELLS = 16
_MOST_CLASSES = 1000  # beyond it the value has no interval

Area = Callable[[Floats], Floats]


def roc_area(sums: Floats) -> Floats:
    """How often a positive row has the higher score than a negative one, ties counting half.

    Args:
        sums: weight of positives by score, ascending, then weight of negatives [..., 2 * cells].
    """
    positive, negative = np.split(sums, 2, axis=-1)
    below = np.cumsum(negative, axis=-1) - negative / 2
    pairs = positive.sum(-1) * negative.sum(-1)
    return divide((positive * below).sum(-1), pairs, np.nan)


def precision_area(sums: Floats) -> Floats:
    """Average precision: the precision at each score, by the recall that is gained there; no interpolation.

    Args:
        sums: weight of positives by score, ascending, then weight of negatives [..., 2 * cells].
    """
    positive, negative = (half[..., ::-1] for half in np.split(sums, 2, axis=-1))
    found = np.cumsum(positive, axis=-1)
    precision = divide(found, found + np.cumsum(negative, axis=-1), 0.0)
    one_class = negative.sum(-1) == 0
    return np.where(one_class, np.nan, divide((positive * precision).sum(-1), positive.sum(-1), np.nan))


def _cells(score: Floats, positive: Mask, most: int) -> Codes:
    """The cell of every row by its score, ascending; cells begin at evenly spread positives and negatives."""
    values, codes = np.unique(score, return_inverse=True)
    codes = codes.reshape(-1)
    if len(values) <= most:
        return codes
    starts = [np.zeros(1, np.int64)]  # the bottom, besides half of the rest at each side's rows
    for side in (codes[positive], codes[~positive]):
        count = min(len(side), (most - 1) // 2)
        if count:
            starts.append(np.sort(side)[(np.arange(count) * len(side)) // count])
    return np.searchsorted(np.unique(np.concatenate(starts)), codes, side="right") - 1


def _binned(codes: Codes, positive: Mask, blocks: Blocks, cells: int) -> Floats:
    return blocks.counts(codes, cells, positive, ~positive)


def _exact(area: Area, score: Floats, positive: Mask, weights: Floats | None) -> float:
    _values, codes = np.unique(score, return_inverse=True)
    codes = codes.reshape(-1)
    ones = np.ones(len(score)) if weights is None else weights
    return float(area(np.concatenate([np.bincount(codes, ones * side) for side in (positive, ~positive)])))


def _of_positive(scored: Classified) -> tuple[Floats, Mask]:
    return probabilities_of(scored)[:, scored.positive], scored.truth == scored.positive


def _binary_parts(scored: Classified, blocks: Blocks) -> Floats:
    score, positive = _of_positive(scored)
    codes = _cells(score, positive, _CELLS)
    return _binned(codes, positive, blocks, int(codes.max()) + 1)


def _binary_exact(area: Area, scored: Classified) -> float:
    return _exact(area, *_of_positive(scored), scored.weights)


def _present(scored: Classified) -> Codes:
    """Classes with some weight in the truth."""
    return np.flatnonzero(np.bincount(scored.truth, scored.weights, scored.classes) > 0)


def _cells_each(classes: int) -> int:
    return max(_ALL_CELLS // max(classes, 1), _LEAST_CELLS)


def _each_parts(scored: Classified, blocks: Blocks) -> Floats:
    """Cells of each class that is true somewhere, against all others: [blocks, classes, 2 * cells]."""
    probabilities, present = probabilities_of(scored), _present(scored)
    if len(present) > _MOST_CLASSES:
        return np.full((blocks.count, 1, 2), np.nan)
    most = _cells_each(len(present))
    sides = [scored.truth == code for code in present]
    codes = [_cells(probabilities[:, code], side, most) for code, side in zip(present, sides, strict=True)]
    cells = max(int(one.max()) for one in codes) + 1
    parts = [_binned(one, side, blocks, cells) for one, side in zip(codes, sides, strict=True)]
    return np.stack(parts, axis=1)


def _each_area(sums: Floats) -> Floats:
    areas: Floats = roc_area(sums).mean(axis=-1)
    return areas


def _each_exact(scored: Classified) -> float:
    probabilities = probabilities_of(scored)
    areas = [
        _exact(roc_area, probabilities[:, code], scored.truth == code, scored.weights)
        for code in _present(scored)
    ]
    return float(np.mean(areas))


def _each_width(scored: Classified) -> int:
    classes = len(_present(scored))
    return min(classes, _MOST_CLASSES) * 2 * _cells_each(classes)


def curve_metrics() -> Iterable[Metric]:
    """Areas for two classes, and the average of each class against the others for more."""
    for name, area in (("roc_auc", roc_area), ("pr_auc", precision_area)):
        yield Metric(
            name,
            "classification",
            "share",
            True,
            "score",
            _binary_parts,
            area,
            ONE_CLASS,
            needs_probabilities=True,
            exact=partial(_binary_exact, area),
            classes="two",
            width=lambda _scored: 2 * _CELLS,
        )
    yield Metric(
        "roc_auc_ovr",
        "classification",
        "share",
        True,
        "score",
        _each_parts,
        _each_area,
        ONE_CLASS,
        needs_probabilities=True,
        exact=_each_exact,
        classes="many",
        width=_each_width,
    )
