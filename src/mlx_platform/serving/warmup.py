"""The first runs of a model: they load its code paths, time it, and prove that rows may share a run."""

import time
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlx_platform.core.errors import MlxError
from mlx_platform.core.tensors import Array, Tensors, row_count
from mlx_platform.inference.golden import seeded_rows
from mlx_platform.inference.model import Model
from mlx_platform.serving.signature import Signature

_SEQUENCE = 8  # what a dimension that varies is tried with
_BUDGET_SECONDS = 0.15  # for the timing of one batch size
_REPEATS = 15
_INLINE_SECONDS = 0.0003
_INLINE_BATCH_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the first runs showed.

    Attributes:
        seconds: median seconds of a run by its rows; empty when no input could be made.
        rowwise: whether rows give the same answers alone and together; taken for granted when unknown.
    """

    seconds: dict[int, float]
    rowwise: bool

    @property
    def inline(self) -> bool:
        """Whether a run costs less than handing it to another thread."""
        if not self.seconds:
            return False
        return (
            self.seconds[min(self.seconds)] < _INLINE_SECONDS
            and self.seconds[max(self.seconds)] < _INLINE_BATCH_SECONDS
        )


def warm_up(model: Model, signature: Signature, max_rows: int) -> WarmUp:
    """Run golden inputs, or made-up ones, in batches of several sizes."""
    feeds = example_feeds(model)
    if not feeds:
        return WarmUp({}, rowwise=True)
    if not signature.batched:
        return WarmUp({signature.rows(feeds): _time(model, feeds)}, rowwise=False)
    pair = {name: np.concatenate([array[:1], array[-1:]]) for name, array in feeds.items()}
    if not _is_rowwise(model, pair):
        return WarmUp({1: _time(model, _repeated(feeds, 1))}, rowwise=False)
    sizes = sorted({1, min(8, max_rows), max_rows})
    return WarmUp({size: _time(model, _repeated(feeds, size)) for size in sizes}, rowwise=True)


def example_feeds(model: Model) -> Tensors:
    """Inputs that the model runs on, of golden cases or made up; {} where there are none."""
    cases = [case.rows() for case in model.package.golden()]
    for rows in (*cases, *seeded_rows(model.spec, _SEQUENCE)):
        try:
            is_tensors = set(rows) == {spec.name for spec in model.spec.inputs}
            feeds = dict(rows) if is_tensors and model.columns else model.encode(rows)
            model.run(feeds, timeout=10.0)
        except MlxError:
            continue  # an input that this model does not take tells nothing; the self-check has judged it
        return feeds
    return {}


def _is_rowwise(model: Model, pair: Tensors) -> bool:
    together = model.run(pair)
    for row in range(row_count(pair)):
        alone = model.run({name: array[row : row + 1] for name, array in pair.items()})
        for name, array in together.items():
            if array.ndim == 0 or len(array) != row_count(pair) or alone[name].shape[:1] != (1,):
                return False
            if not _same(array[row : row + 1], alone[name]):
                return False
    return True


def _same(left: Array, right: Array) -> bool:
    if left.dtype.kind != "f":
        return bool(np.array_equal(left, right))
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-3, atol=1e-4, equal_nan=True))


def _repeated(feeds: Tensors, rows: int) -> dict[str, Array]:
    return {name: array[np.arange(rows) % len(array)] for name, array in feeds.items()}


def _time(model: Model, feeds: Tensors) -> float:
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < _REPEATS and time.perf_counter() - begin < _BUDGET_SECONDS:
        start = time.perf_counter()
        model.run(feeds)
        seconds.append(time.perf_counter() - start)
    return median(seconds)
