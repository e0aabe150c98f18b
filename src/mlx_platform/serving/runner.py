"""What computes the outputs of a batch: the loaded model, or something that stands in for it."""

from collections.abc import Mapping
from typing import Protocol

from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.inference.model import Model


class Runner(Protocol):
    """Called on worker threads, or on the event loop where runs are faster than a change of threads."""

    def run(self, feeds: Tensors, outputs: tuple[str, ...], timeout: float) -> Mapping[str, Array]:
        """The named outputs of inputs that stand row under row, within `timeout` seconds.

        Raises:
            DeadlineError: it took longer, and was ended.
            MlxError: it failed.
            MemoryError: there was not enough memory.
        """

    @property
    def degraded(self) -> str:
        """What computes in the place of what was asked for, "" for that itself."""

    @property
    def down(self) -> bool:
        """Whether nothing computes at the moment."""

    def stop(self, thread: int) -> None:
        """End the run that a thread is in, if it can be ended; called on another thread."""


class ModelRunner:
    """The model itself."""

    degraded = ""
    down = False

    def __init__(self, model: Model) -> None:
        self._model = model

    def run(self, feeds: Tensors, outputs: tuple[str, ...], timeout: float) -> Mapping[str, Array]:
        return self._model.run(feeds, outputs, timeout=timeout)

    def stop(self, thread: int) -> None:
        self._model.session.stop(thread)
