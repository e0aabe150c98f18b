"""The pipeline's steps beside the network: while one batch runs, the inputs of the next are made.

Steps that cost less than a change of threads run on the event loop. Others run on a few threads, which is
enough where the work is native and lets go of the interpreter, as that of tokenizers and image decoders does;
or in processes of their own, where it would hold it.
"""

import asyncio
import logging
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mlx_platform.core.settings import ServingSettings
from mlx_platform.core.tensors import Array, Columns, Tensors, row_count
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import SPEC
from mlx_platform.inference.pipeline import Encoded, Pipeline
from mlx_platform.inference.spec import parse_spec
from mlx_platform.serving.metrics import Sample

_CHEAP_ROWS = 64
_Made = TypeVar("_Made")
_logger = logging.getLogger(__name__)


class Preparation:
    """Makes tensors of rows and answers of tensors; used on one event loop.

    Args:
        model: the loaded model.
        settings: how many threads and processes the steps get.
    """

    def __init__(self, model: Model, settings: ServingSettings) -> None:
        self._model = model
        self._count = 0 if model.has_cheap_steps else settings.pipeline_processes
        self.threads = ThreadPoolExecutor(settings.pipeline_threads, thread_name_prefix="mlx-pipeline")
        self._root = str(model.package.root)
        self._spent: dict[str, tuple[int, float]] = {step.kind: (0, 0.0) for step in model.spec.pre}
        self._pool: ProcessPoolExecutor | None = None

    async def start(self) -> None:
        """Start the processes, and wait for one to have read the assets."""
        if self._count:
            self._pool = _new_pool(self._count)
            # One is enough to know that it works; the others read theirs when they are first needed.
            await asyncio.get_running_loop().run_in_executor(self._pool, _warm, self._root)

    async def encode(self, columns: Columns) -> Encoded:
        """The input tensors of raw rows.

        Raises:
            UsageError: a cell cannot be used.
        """
        encoded = await self._encoded(columns)
        for kind, seconds in encoded.seconds.items():
            runs, spent = self._spent[kind]
            self._spent[kind] = (runs + 1, spent + seconds)
        return encoded

    async def decode(self, tensors: Tensors, rows: int) -> dict[str, Array]:
        """The answers of output tensors.

        Raises:
            UsageError: they cannot be turned into answers.
        """
        return await self._step(self._model.decode, tensors, rows)

    def samples(self) -> Iterator[Sample]:
        """How often each kind of step ran, and how long in all."""
        for kind, (runs, spent) in self._spent.items():
            labels = (("step", kind),)
            yield Sample("mlx_pipeline_step_runs", "Requests that a step worked on.", runs, labels)
            yield Sample("mlx_pipeline_step_seconds", "Time that a step took in all.", spent, labels)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _encoded(self, columns: Columns) -> Encoded:
        rows = row_count(columns)
        if self._pool is None:
            return await self._step(self._model.prepare, columns, rows)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, _encode, self._root, columns)
        except BrokenProcessPool:
            _logger.warning("A process of the pipeline died; the steps go on in new ones.")
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = _new_pool(self._count)
            return await self._step(self._model.prepare, columns, rows)

    async def _step(self, step: Callable[[Any], _Made], batch: Columns, rows: int) -> _Made:
        if self._model.has_cheap_steps and rows <= _CHEAP_ROWS:
            return step(batch)
        return await asyncio.get_running_loop().run_in_executor(self.threads, step, batch)


def _new_pool(processes: int) -> ProcessPoolExecutor:
    # A fork of a process with threads may hang; a fresh one imports what it needs.
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


@cache
def _pipeline(root: str) -> Pipeline:
    """In a process of the pool: the steps, their assets read once."""
    folder = Path(root)
    return Pipeline(parse_spec((folder / SPEC).read_text(), SPEC), folder)


def _warm(root: str) -> None:
    _pipeline(root)


def _encode(root: str, columns: Columns) -> Encoded:
    return _pipeline(root).encode(columns)
