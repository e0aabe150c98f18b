"""Rows that are too long for the network: taken in parts, and their answers put together again."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.core.text import printable

Merge = Literal["mean", "max", "first"]
MERGES: tuple[Merge, ...] = ("mean", "max", "first")


@dataclass(frozen=True, slots=True)
class Parts:
    """How rows were split: part by part, those of a row one after the other.

    Attributes:
        counts: parts of each row, at least one, INT64 [rows].
        weights: how much each part has to say in a mean, FP64 [parts].
        merge: `mean` weighs the outputs of a row's parts, `max` takes the largest of each element, `first`
            the first part's.
    """

    counts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]
    merge: Merge

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def spread(self, column: Array) -> Array:
        """A column of rows as a column of parts: each part sees the whole of its row's other columns."""
        return np.repeat(column, self.counts, axis=0)

    def merged(self, tensors: Tensors) -> dict[str, Array]:
        """The outputs of rows, of outputs of parts.

        Raises:
            UsageError: an output has not one entry per part, or no numbers that could be merged.
        """
        return {name: self._merged(name, tensor) for name, tensor in tensors.items()}

    def _merged(self, name: str, tensor: Array) -> Array:
        if not tensor.ndim or len(tensor) != self.total:
            raise UsageError(
                f"The output {printable(name, 128)!r} is not one per part, so parts cannot be put together."
            )
        starts = np.cumsum(self.counts) - self.counts
        if self.merge == "first" or self.total == len(self.counts):
            first: Array = tensor[starts]
            return first
        if tensor.dtype.kind != "f":
            raise UsageError(
                f"The output {printable(name, 128)!r} holds no floats, so it has no {self.merge} over parts.",
                hint='Leave it out of the outputs in model.toml, or write merge = "first".',
            )
        if self.merge == "max":
            largest: Array = np.maximum.reduceat(tensor, starts, axis=0)
            return largest
        weights = self.weights.reshape(-1, *(1 for _ in tensor.shape[1:]))
        sums = np.add.reduceat(tensor.astype(np.float64) * weights, starts, axis=0)
        whole = np.add.reduceat(weights, starts, axis=0)
        mean: Array = (sums / whole).astype(tensor.dtype)
        return mean
