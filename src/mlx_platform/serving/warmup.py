"""The first runs of a model: they load its code paths, time it, and prove what may share a run."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mlx_platform.core.errors import MlxError
from mlx_platform.core.tensors import Array, Tensors, TensorSpec, row_count
from mlx_platform.inference.golden import seeded_rows
from mlx_platform.inference.model import Model
from mlx_platform.serving import padding
from mlx_platform.serving.batch_size import BatchSize, measure
from mlx_platform.serving.padding import Padding
from mlx_platform.serving.signature import Signature

_SEQUENCE = 8  # what a dimension that varies is tried with
_SHORT_SEQUENCE = 16  # for the choice of a batch size; the longer ones get as many tokens, in fewer rows
_BUDGET_SECONDS = 0.15  # for the timing of one batch size
_REPEATS = 15
_INLINE_SECONDS = 0.0003
_INLINE_BATCH_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the first runs showed.

    Attributes:
        seconds: of a run by its rows, the quickest of some; empty when no input could be made.
        rowwise: whether rows give the same answers alone and together; taken for granted when unknown.
        size: the rows of a run.
        cells: numbers in the inputs of one row of these runs.
        padding: how sequences of different lengths may share a run; None when they may not.
    """

    seconds: dict[int, float]
    rowwise: bool
    size: BatchSize
    cells: int = 0
    padding: Padding | None = None

    @property
    def inline_cells(self) -> int:
        """The numbers in the inputs of the largest run that costs less than handing it to another thread."""
        if not self.seconds:
            return 0
        fast = [rows for rows, seconds in self.seconds.items() if seconds < _INLINE_BATCH_SECONDS]
        if self.seconds[min(self.seconds)] >= _INLINE_SECONDS or not fast:
            return 0
        return max(fast) * max(1, self.cells)


def warm_up(
    model: Model, signature: Signature, max_rows: int | None, *, longest: float = 0.2, workers: int = 1
) -> WarmUp:
    """Run golden inputs, or made-up ones, in batches of several sizes.

    Args:
        model: the loaded model.
        signature: what it takes and gives.
        max_rows: of a run; None chooses by what is measured.
        longest: seconds that a run may take for that choice.
        workers: how many runs will go on at a time.
    """
    unmeasured = BatchSize(max_rows or _SEQUENCE, "setting" if max_rows else "budget")
    feeds = example_feeds(model)
    if not feeds:
        return WarmUp({}, rowwise=True, size=unmeasured)
    rows = signature.rows(feeds)
    cells = sum(array.size for array in feeds.values()) // rows
    if not signature.batched:
        return WarmUp({rows: _time(model, feeds)}, rowwise=False, size=unmeasured, cells=cells)
    pair = {name: np.concatenate([array[:1], array[-1:]]) for name, array in feeds.items()}
    if not _is_rowwise(model, pair):
        seconds = {1: _time(model, _repeated(feeds, 1))}
        return WarmUp(seconds, rowwise=False, size=unmeasured, cells=cells)
    fill = padding.candidate(model.spec)
    if max_rows:
        curve = {
            size: _time(model, _repeated(feeds, size)) for size in sorted({1, min(8, max_rows), max_rows})
        }
        size = unmeasured
    else:
        short = padding.stretched(feeds, fill, _SHORT_SEQUENCE) if fill else feeds
        cells = sum(array.size for array in short.values()) // rows
        curve, size = measure(lambda count: _time(model, _repeated(short, count)), longest, workers)
    return WarmUp(curve, rowwise=True, size=size, cells=cells, padding=_provable_padding(model, pair, fill))


def example_feeds(model: Model) -> Tensors:
    """Inputs that the model runs on, of golden cases or made up; {} where there are none."""
    cases = [case.rows() for case in model.package.golden()]
    for rows in (*cases, *seeded_rows(model.spec, _SEQUENCE), _made_up(model.spec.inputs)):
        try:
            is_tensors = set(rows) == {spec.name for spec in model.spec.inputs}
            feeds = dict(rows) if is_tensors and model.columns else model.encode(rows)
            if not feeds:
                break
            model.run(feeds, timeout=10.0)
        except MlxError:
            continue  # an input that this model does not take tells nothing; the self-check has judged it
        return feeds
    return {}


def _made_up(inputs: Iterable[TensorSpec]) -> dict[str, Array]:
    """Tensors where no rows can be made, as of text: ones and zeros are tokens of any vocabulary."""
    made: dict[str, Array] = {}
    for number, spec in enumerate(inputs):
        if spec.datatype == "BYTES":
            return {}
        shape = [_SEQUENCE if dim is None else dim for dim in spec.shape]
        if "mask" in spec.name.lower():
            made[spec.name] = np.ones(shape, spec.numpy_type)
        else:
            values = np.random.default_rng(number).integers(0, 2, shape)
            made[spec.name] = values.astype(spec.numpy_type)
    return made


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


def _provable_padding(model: Model, pair: Tensors, fill: Mapping[str, float]) -> Padding | None:
    """How sequences are filled up, if short ones answer as they do alone, beside long ones."""
    if not fill:
        return None
    found: Padding | None = None
    length = max(_SEQUENCE, *(pair[name].shape[1] for name in fill))
    long = padding.stretched({name: array[:1] for name, array in pair.items()}, fill, length)
    for short_length in (1, length // 3, length * 2 // 3):
        short = padding.stretched({name: array[1:] for name, array in pair.items()}, fill, short_length)
        try:
            found = _padded_alike(model, fill, short, long)
        except MlxError:
            return None
        if found is None:
            return None
    return found


def _padded_alike(model: Model, fill: Mapping[str, float], short: Tensors, long: Tensors) -> Padding | None:
    lengths = [row[next(iter(fill))].shape[1] for row in (short, long)]
    alone = [model.run(row) for row in (short, long)]
    axes = padding.following(alone[0], alone[1], (lengths[0], lengths[1]))
    if axes is None:
        return None
    found = Padding(fill, axes)
    together = model.run(
        {
            name: found.join(name, (short[name], long[name]), lengths[1])
            if name in fill
            else np.concatenate((short[name], long[name]))
            for name in short
        }
    )
    for row, (length, want) in enumerate(zip(lengths, alone, strict=True)):
        for name, array in together.items():
            if not _same(found.cut(name, array[row : row + 1], length), want[name]):
                return None
    return found


def _same(left: Array, right: Array) -> bool:
    if left.dtype.kind != "f":
        return bool(np.array_equal(left, right))
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-3, atol=1e-4, equal_nan=True))


def _repeated(feeds: Tensors, rows: int) -> dict[str, Array]:
    return {name: array[np.arange(rows) % len(array)] for name, array in feeds.items()}


def _time(model: Model, feeds: Tensors) -> float:
    """The quickest of some runs: a version that comes up beside one under load is timed as that one was."""
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < _REPEATS and time.perf_counter() - begin < _BUDGET_SECONDS:
        start = time.perf_counter()
        model.run(feeds)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
