"""The ranges that activations take on real rows, in memory that does not grow with the rows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.quantize.runtime import refused, start
from mlx_platform.quantize.storage import load, remove, save_showing

BINS = 2048
_ELEMENTS = {"float32": "float", "float64": "double", "object": "string"}  # as ONNX Runtime names them
_SMALLEST_EXPONENT = (
    -100
)  # below 2**-100 everything is one bin, so that scaling by a power of two stays exact


@dataclass(frozen=True, slots=True)
class Range:
    lowest: float
    highest: float


class Histogram:
    """Extremes and a histogram of magnitudes of a stream of numbers.

    Bins share [0, R) evenly, R being the smallest power of two above every magnitude seen. When a larger
    one comes, pairs of bins are folded; a bin's limits are exact in binary, so the counts are the same
    however the stream was cut.
    """

    __slots__ = ("_exponent", "_extremes_only", "bins", "count", "highest", "lowest")

    def __init__(self, *, extremes_only: bool = False) -> None:
        self._extremes_only = extremes_only
        self.bins: npt.NDArray[np.int64] = np.zeros(BINS, dtype=np.int64)
        self.count = 0
        self.lowest = math.inf
        self.highest = -math.inf
        self._exponent: int | None = None

    @property
    def limit(self) -> float:
        """R, or 0 while only zeros were seen."""
        return 0.0 if self._exponent is None else math.ldexp(1.0, self._exponent)

    def add(self, values: Array) -> None:
        """Count an array of finite floats of any shape.

        Raises:
            ValueError: a value is NaN or infinite; nothing was counted.
        """
        if values.size == 0:
            return
        lowest, highest = float(values.min()), float(values.max())
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            raise ValueError("not finite")
        self.lowest = min(self.lowest, lowest)
        self.highest = max(self.highest, highest)
        self.count += values.size
        if self._extremes_only:
            return
        self._widen(max(abs(lowest), abs(highest)))
        if self._exponent is None:
            self.bins[0] += values.size
            return
        scale = np.float32(math.ldexp(float(BINS), -self._exponent))
        magnitudes = np.abs(values.reshape(-1), dtype=np.float32)
        indices = np.multiply(magnitudes, scale, out=magnitudes).astype(np.int32)
        self.bins += np.bincount(indices, minlength=BINS)

    def _widen(self, magnitude: float) -> None:
        if magnitude == 0:
            return
        # frexp gives a fraction below one, so the power of two lies strictly above the magnitude.
        exponent = max(math.frexp(magnitude)[1], _SMALLEST_EXPONENT)
        if self._exponent is None:
            self._exponent = exponent  # only zeros so far, and they are in the first bin whatever R is
        folds = min(exponent - self._exponent, BINS.bit_length() - 1)
        if folds > 0:
            folded = self.bins.reshape(-1, 1 << folds).sum(axis=1)
            self.bins = np.concatenate([folded, np.zeros(BINS - len(folded), dtype=np.int64)])
            self._exponent = exponent

    def extremes(self) -> Range:
        return Range(self.lowest, self.highest)

    @classmethod
    def restored(
        cls, bins: npt.NDArray[np.int64], count: int, lowest: float, highest: float, limit: float
    ) -> Self:
        """A histogram as its attributes described it."""
        found = cls()
        found.bins, found.count = np.ascontiguousarray(bins), count
        found.lowest, found.highest = float(lowest), float(highest)
        # The limit is a power of two, of which frexp gives one half and the exponent above it.
        found._exponent = math.frexp(limit)[1] - 1 if limit else None
        return found


def calibrate(
    prepared: Path,
    tensors: Sequence[str],
    feeds: Iterable[Tensors],
    folder: Path,
    *,
    extremes_only: bool = False,
    threads: int = 1,
    advance: Callable[[int], None] = lambda _rows: None,
    row_name: Callable[[int], str] = "row {}".format,
) -> Mapping[str, Histogram]:
    """Run rows through a model and watch its tensors.

    Args:
        prepared: the model file.
        tensors: names of float tensors of its main graph, inputs among them.
        feeds: the model's inputs, batch by batch; each is forgotten before the next is asked for.
        folder: a private folder for a copy of the model that shows its inner tensors.
        extremes_only: leave the histograms empty, which takes half the time.
        threads: within one operator.
        advance: told how many rows are done.
        row_name: what to call a row, counted from 0 over all batches.

    Returns:
        A histogram for every tensor; one that was always empty has count 0.

    Raises:
        UsageError: a tensor holds NaN or infinity, or a feed has another name, type or shape than the
            model's input; names the tensor and the row.
        UndecidedError: there is no row.
    """
    watched = folder / "watched.onnx"
    save_showing(load(prepared), tensors, watched)
    session = start(watched, level="basic", threads=threads)
    remove(watched)
    inputs = {value.name: value for value in session.get_inputs()}
    computed = [name for name in tensors if name not in inputs]
    seen = {name: Histogram(extremes_only=extremes_only) for name in tensors}
    rows = 0
    for batch in feeds:
        _check_feeds(inputs, batch, row_name(rows))
        count = next((len(array) for array in batch.values() if array.ndim), 1)
        with refused("run calibration rows through"):
            values = dict(zip(computed, session.run(computed, dict(batch)) if computed else [], strict=True))
        for name, histogram in seen.items():
            array = values[name] if name in values else batch[name]
            try:
                histogram.add(array)
            except ValueError:
                raise _not_finite(name, array, rows, count, row_name) from None
        rows += count
        advance(count)
    if rows == 0:
        raise UndecidedError("There is no calibration row.", hint="A few hundred rows are needed.")
    return seen


def _check_feeds(wanted: Mapping[str, Any], batch: Tensors, row: str) -> None:
    """Hold a batch against what the session says of its inputs, by name.

    Raises:
        UsageError: a name, a type or a shape differs; names the batch's first row.
    """
    for name, value in wanted.items():
        if name not in batch:
            raise UsageError(
                f"Calibration {row} has no tensor for the model's input {printable(name)!r}.",
                hint=did_you_mean(name, batch),
            )
        array = batch[name]
        given = _ELEMENTS.get(array.dtype.name, array.dtype.name)
        if value.type != f"tensor({given})":
            raise UsageError(
                f"The model's input {printable(name)!r} is a {value.type},"
                f" and calibration {row} gives a tensor({given})."
            )
        sizes = zip(value.shape, array.shape, strict=False)
        if len(value.shape) != array.ndim or any(isinstance(dim, int) and dim != size for dim, size in sizes):
            declared = ", ".join(str(dim) if isinstance(dim, int) else "any" for dim in value.shape)
            raise UsageError(
                f"The model's input {printable(name)!r} has the shape ({declared}),"
                f" and calibration {row} gives {array.shape}."
            )
    for name in batch.keys() - wanted.keys():
        raise UsageError(
            f"Calibration {row} has a tensor {printable(name)!r}, which is no input of the model.",
            hint=did_you_mean(name, wanted),
        )


def _not_finite(
    name: str, array: Array, before: int, count: int, row_name: Callable[[int], str]
) -> UsageError:
    bad = before
    where = ""
    if array.ndim and len(array) == count:
        bad = before + int(np.argwhere(~np.isfinite(array))[0][0])
    elif count > 1:
        where = f" or one of the {count - 1} after it"
    return UsageError(
        f"Calibration {row_name(bad)}{where} makes the tensor {printable(name)!r} NaN or infinite.",
        hint="Remove the row, or find out why the model cannot answer it.",
        tensor=name,
    )
