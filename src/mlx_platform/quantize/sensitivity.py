"""How far a candidate's answers are from the original's, and which layers are to blame."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.quantize.runtime import refused, start

_BATCH = 32


@dataclass(frozen=True, slots=True)
class Distance:
    """Between a candidate's answers and the original's, on rows whose labels nobody needs.

    Attributes:
        divergence: smooth, to steer by: the mean KL divergence in nats, or the relative error of answers that
            are no probabilities.
        loss: what is tolerated up to a limit: the share of answers that changed, or the relative error.
    """

    divergence: float
    loss: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a layer in float32 alone brings: `gain` in divergence, for `cost` more bytes."""

    node: str
    gain: float
    cost: int
    distance: Distance


Compare = Callable[[Sequence[Tensors]], Distance]


class Meter:
    """Runs candidates on the same rows and compares what they give with what the original gave."""

    def __init__(self, feeds: Sequence[Tensors], compare: Compare, *, threads: int = 1) -> None:
        """Set up.

        Args:
            feeds: the rows as model inputs, batch by batch.
            compare: from the outputs of all batches to their distance.
            threads: within one operator.
        """
        self._feeds = feeds
        self._compare = compare
        self._threads = threads

    def measure(self, path: Path) -> Distance:
        """Run a model file.

        Raises:
            UndecidedError: ONNX Runtime cannot load or run it.
        """
        return self._compare(run_all(path, self._feeds, threads=self._threads))


def run_all(path: Path, feeds: Sequence[Tensors], *, threads: int = 1) -> list[dict[str, Array]]:
    """The outputs of a model file for every batch.

    Raises:
        UndecidedError: ONNX Runtime cannot load or run it.
    """
    session = start(path, threads=threads)
    names = [output.name for output in session.get_outputs()]
    with refused("run"):
        return [dict(zip(names, session.run(names, dict(batch)), strict=True)) for batch in feeds]


def by_shape(feeds: Iterable[Tensors], *, most: int = _BATCH) -> list[dict[str, Array]]:
    """Join batches whose rows have the same shape, so that no row is padded and few runs are needed.

    Args:
        feeds: batches of one row or more; each tensor has the rows as its first dimension.
        most: rows in a batch.
    """
    alike: dict[tuple[tuple[str, tuple[int, ...], str], ...], list[Tensors]] = {}
    for batch in feeds:
        shape = tuple((name, array.shape[1:], array.dtype.str) for name, array in sorted(batch.items()))
        alike.setdefault(shape, []).append(batch)
    joined = []
    for batches in alike.values():
        whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        rows = len(next(iter(whole.values())))
        joined += [
            {name: array[start : start + most] for name, array in whole.items()}
            for start in range(0, rows, most)
        ]
    return joined
