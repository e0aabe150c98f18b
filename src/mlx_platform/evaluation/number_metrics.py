"""Metrics of predicted numbers."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from mlx_platform.evaluation.metric import Metric, divide, mean, ones
from mlx_platform.evaluation.resample import Blocks, Floats
from mlx_platform.evaluation.scored import Predicted

_CELLS = 256
_NEAR = 6.0  # standard errors around the median within which cells are narrow


def _error_parts(scored: Predicted, blocks: Blocks) -> Floats:
    """Weight, error, absolute error, squared error, and the centred truth with its square: [blocks, 6]."""
    error = scored.answer - scored.truth
    centred = scored.truth - scored.truth.mean()
    return blocks.sums(ones(scored), error, np.abs(error), error**2, centred, centred**2)


def _rmse(sums: Floats) -> Floats:
    return np.sqrt(mean(3)(sums))


def _r2(sums: Floats) -> Floats:
    rows, squared = sums[..., 0], sums[..., 3]
    spread = sums[..., 5] - divide(sums[..., 4] ** 2, rows, np.nan)
    # What rounding leaves of a constant truth is no spread.
    spread = np.where(spread > 1e-12 * np.maximum(sums[..., 5], 1e-300), spread, 0.0)
    return 1.0 - divide(squared, spread, np.nan)


def _max_error(scored: Predicted) -> float:
    error = np.abs(scored.answer - scored.truth)
    return float((error if scored.weights is None else error[scored.weights > 0]).max())


def _relative_parts(scored: Predicted, blocks: Blocks) -> Floats:
    error = np.abs(scored.answer - scored.truth)
    # A share of nothing is no number, and a huge one in its place would drown all others.
    return blocks.sums(ones(scored), divide(error, np.abs(scored.truth), np.nan))


def _symmetric_parts(scored: Predicted, blocks: Blocks) -> Floats:
    error = np.abs(scored.answer - scored.truth)
    # Zero predicted as zero is no error at all.
    return blocks.sums(ones(scored), divide(2 * error, np.abs(scored.truth) + np.abs(scored.answer), 0.0))


def _pinball_parts(quantile: float, scored: Predicted, blocks: Blocks) -> Floats:
    short = scored.truth - scored.answer
    return blocks.sums(ones(scored), np.maximum(quantile * short, (quantile - 1) * short))


def _median_cells(scored: Predicted, blocks: Blocks) -> Floats:
    """Weight and absolute error by cell of absolute errors in ascending order: [blocks, 2 * cells].

    Each distinct error has its own cell while they are few. Else half of the cells lie within six standard
    errors of the median's rank, where resampled medians fall; a cell is then a tenth of one wide.
    """
    error = np.abs(scored.answer - scored.truth)
    values, codes = np.unique(error, return_inverse=True)
    codes = codes.reshape(-1)
    if len(values) > _CELLS:
        rank = np.cumsum(np.bincount(codes, scored.weights))
        near = _NEAR * 0.5 / np.sqrt(max(1.0, min(scored.units, scored.effective_rows)))
        shares = np.concatenate(
            [
                np.linspace(0, 1, _CELLS // 2),
                np.linspace(max(0.0, 0.5 - near), min(1.0, 0.5 + near), _CELLS // 2),
            ]
        )
        edges = np.unique(np.searchsorted(rank, np.sort(shares) * rank[-1]))
        codes = np.searchsorted(edges, codes)
    return blocks.counts(codes, int(codes.max()) + 1, ones(scored), error)


def _median(sums: Floats) -> Floats:
    """The weighted median of cells; halfway between two where the weight below is exactly half."""
    weight, error = np.split(sums, 2, axis=-1)
    below = np.cumsum(weight, axis=-1)
    half = below[..., -1:] / 2
    ends = [below >= half * (1 - 1e-12), below > half * (1 + 1e-12)]
    middle = [
        np.take_along_axis(divide(error, weight, np.nan), end.argmax(axis=-1)[..., None], axis=-1)[..., 0]
        for end in ends
    ]
    return (middle[0] + middle[1]) / 2


def _exact_median(scored: Predicted) -> float:
    error = np.abs(scored.answer - scored.truth)
    order = np.argsort(error, kind="stable")
    weights = np.ones(scored.rows) if scored.weights is None else scored.weights[order]
    return float(_median(np.concatenate([weights, weights * error[order]])))


def _measured(
    name: str,
    parts: Callable[[Predicted, Blocks], Floats],
    value: Callable[[Floats], Floats],
    undefined: str = "it is not a number",
    *,
    usual: bool = True,
) -> Metric:
    return Metric(name, "regression", "", False, "loss", parts, value, undefined, usual=usual)


def number_metrics() -> Iterable[Metric]:
    """Those of every regression, in the unit of the truth unless they are relative."""
    yield _measured("rmse", _error_parts, _rmse)
    yield _measured("mae", _error_parts, mean(2))
    yield Metric(
        "median_ae",
        "regression",
        "",
        False,
        "loss",
        _median_cells,
        _median,
        exact=_exact_median,
        width=lambda _scored: 2 * _CELLS,
    )
    yield Metric("r2", "regression", "", True, "score", _error_parts, _r2, "the truth must vary")
    yield Metric("bias", "regression", "", None, "loss", _error_parts, mean(1))
    yield Metric("max_error", "regression", "", False, "loss", None, _max_error)
    yield _measured("mape", _relative_parts, mean(1), "the truth must not be zero; smape and mae may be")
    yield _measured("smape", _symmetric_parts, mean(1))


def pinball(quantile: float, name: str) -> Metric:
    """The loss that is least at the quantile of the truth (Koenker and Bassett, Econometrica 46, 1978)."""
    return _measured(name, partial(_pinball_parts, quantile), mean(1), usual=False)
