"""The pipeline's steps beside the network: while one batch runs, the inputs of the next are made.

Steps that cost less than a change of threads run on the event loop. Others run on a few threads, which is
enough where the work is native and lets go of the interpreter, as that of tokenizers and image decoders does;
or in processes of their own, where it would hold it.
"""

import asyncio
import logging
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from pathlib import Path

from mlx_platform.core.errors import DeadlineError, UnavailableError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import Array, Columns, Tensors, row_count
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import SPEC
from mlx_platform.inference.pipeline import Encoded, Pipeline
from mlx_platform.inference.spec import parse_spec
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.metrics import Sample

_CHEAP_ROWS = 64
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
        self._pending: set[asyncio.Task[Encoded]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start the processes, and wait for one to have read the assets."""
        if self._count:
            self._pool = _new_pool(self._count)
            # One is enough to know that it works; the others read theirs when they are first needed.
            await asyncio.get_running_loop().run_in_executor(self._pool, _warm, self._root)

    async def encode(self, columns: Columns, exchange: Exchange) -> Encoded:
        """The input tensors of raw rows, unless nobody waits for them any more.

        Raises:
            UsageError: a cell cannot be used.
            DeadlineError: the exchange's deadline passed; what was begun ends after the row that it is at.
            UnavailableError: this was closed meanwhile.
        """
        if self._model.has_cheap_steps and row_count(columns) <= _CHEAP_ROWS:
            return self._counted(self._model.prepare(columns))
        work = self._begin(columns, exchange)
        exchange.waiting = work
        try:
            return self._counted(await asyncio.wait_for(work, exchange.deadline - time.monotonic()))
        except TimeoutError as error:
            raise DeadlineError("The deadline passed while the inputs were made.") from error
        except asyncio.CancelledError:
            if self._closed and not exchange.abandoned:
                raise UnavailableError("The server is shutting down.") from None
            raise
        finally:
            exchange.waiting = None

    def _counted(self, encoded: Encoded) -> Encoded:
        for kind, seconds in encoded.seconds.items():
            runs, spent = self._spent[kind]
            self._spent[kind] = (runs + 1, spent + seconds)
        return encoded

    async def decode(self, tensors: Tensors, rows: int) -> dict[str, Array]:
        """The answers of output tensors.

        Raises:
            UsageError: they cannot be turned into answers.
        """
        if self._model.has_cheap_steps and rows <= _CHEAP_ROWS:
            return self._model.decode(tensors)
        return await asyncio.get_running_loop().run_in_executor(self.threads, self._model.decode, tensors)

    def samples(self) -> Iterator[Sample]:
        """How often each kind of step ran, and how long in all."""
        for kind, (runs, spent) in self._spent.items():
            labels = (("step", kind),)
            yield Sample("mlx_pipeline_step_runs", "Requests that a step worked on.", runs, labels)
            yield Sample("mlx_pipeline_step_seconds", "Time that a step took in all.", spent, labels)

    def close(self) -> None:
        """End what goes on; whoever waits for it is told so."""
        self._closed = True
        for task in tuple(self._pending):
            task.cancel()
        self.threads.shutdown(wait=False, cancel_futures=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, columns: Columns, exchange: Exchange) -> "asyncio.Task[Encoded]":
        task = asyncio.get_running_loop().create_task(self._encoded(columns, exchange))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return task

    async def _encoded(self, columns: Columns, exchange: Exchange) -> Encoded:
        loop = asyncio.get_running_loop()
        if self._pool is not None:
            try:
                return await loop.run_in_executor(self._pool, _encode, self._root, columns, exchange.deadline)
            except BrokenProcessPool:
                _logger.warning("A process of the pipeline died; the steps go on in new ones.")
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = _new_pool(self._count)

        def go_on() -> None:
            if exchange.abandoned or self._closed:
                raise DeadlineError("Nobody waits for these inputs any more.")
            _check_time(exchange.deadline)

        return await loop.run_in_executor(self.threads, self._model.prepare, columns, go_on)


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


def _encode(root: str, columns: Columns, deadline: float) -> Encoded:
    return _pipeline(root).encode(columns, partial(_check_time, deadline))


def _check_time(deadline: float) -> None:
    # The clock is the machine's, so that a process may be told a time of another.
    if time.monotonic() > deadline:
        raise DeadlineError("The deadline passed while the inputs were made.")
