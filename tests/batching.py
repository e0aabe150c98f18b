"""A batcher in a test, over models that are plain functions, so that every run can be watched and held up."""

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.batcher import Batcher
from mlx_platform.serving.job import NORMAL, Job

LONG = 30.0
POISON = 666.0


class Recorder:
    """A model: y = 2 x, z = x + 1. Fails on poison, can be held up, and remembers its runs."""

    def __init__(self) -> None:
        self.runs: list[list[float]] = []
        self.outputs: list[tuple[str, ...]] = []
        self.timeouts: list[float] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def __call__(self, feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        x = feeds["x"]
        self.runs.append(x[:, 0].tolist())
        self.outputs.append(outputs)
        self.timeouts.append(timeout)
        self.started.set()
        self.gate.wait(10)
        if (x == POISON).any():
            raise UsageError("poison")
        return {name: {"y": 2 * x, "z": x + 1}[name] for name in outputs}


def nothing(*_: Any) -> None:
    pass


@contextmanager
def held(model: Recorder) -> Iterator[None]:
    """Nothing that has started ends before the block does."""
    model.gate.clear()
    try:
        yield
    finally:
        model.gate.set()


def ask(
    batcher: Batcher,
    *values: float,
    width: int = 1,
    outputs: tuple[str, ...] = ("y",),
    wait: float = LONG,
    priority: int = NORMAL,
) -> Job:
    x = np.repeat(np.array(values, np.float32)[:, np.newaxis], width, axis=1)
    deadline = time.monotonic() + wait
    return batcher.submit({"x": x}, len(values), outputs, deadline, joins=True, priority=priority)


def run(
    scenario: Callable[[Batcher], Awaitable[Any]],
    model: Any,
    *,
    inline: bool = False,
    parts: dict[str, Any] | None = None,
    **policy: Any,
) -> Any:
    """Play a scenario with a new batcher; in the end nothing may wait or run."""
    policy.setdefault("inline_cells", math.inf if inline else 0)

    async def main() -> Any:
        batcher = Batcher(model, BatchPolicy(**policy), nothing, **(parts or {}))
        try:
            return await asyncio.wait_for(scenario(batcher), 20)
        finally:
            await batcher.close(5.0)
            assert batcher.in_flight == batcher.queued_rows == 0

    return asyncio.run(main())


async def started(model: Recorder) -> None:
    await asyncio.get_running_loop().run_in_executor(None, model.started.wait, 10)


class Small(Recorder):
    """The same model on a device on which no more than so many rows fit."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.fits = fits

    def __call__(self, feeds: Any, outputs: tuple[str, ...], timeout: float) -> dict[str, Any]:
        answers = super().__call__(feeds, outputs, timeout)
        if len(feeds["x"]) > self.fits:
            raise MemoryError
        return answers
