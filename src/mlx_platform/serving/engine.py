"""The model behind the routes: checked before it serves, batched while it does, and logged afterwards."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mlx_platform.core.errors import (
    GateFailedError,
    MlxError,
    UsageError,
)
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import Array, Columns, Tensors, row_count
from mlx_platform.inference.model import Model, filled
from mlx_platform.inference.pipeline import Encoded
from mlx_platform.serving import tuning
from mlx_platform.serving.alone import Loneliness
from mlx_platform.serving.batch_size import BatchSize
from mlx_platform.serving.batcher import Batcher
from mlx_platform.serving.cache.caches import Caches
from mlx_platform.serving.capture import Capture
from mlx_platform.serving.costs import Costs
from mlx_platform.serving.exchange import Exchange, write_record
from mlx_platform.serving.feeding.guard import Guard
from mlx_platform.serving.job import Job
from mlx_platform.serving.live_drift import LiveDrift
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.observation import Observation
from mlx_platform.serving.predict_body import complaint
from mlx_platform.serving.preparation import Preparation
from mlx_platform.serving.protocol_v2 import InferRequest
from mlx_platform.serving.refusal import (
    Refusal,
    malformed,
    not_ready,
    out_of_memory,
    refusal_of,
)
from mlx_platform.serving.runner import ModelRunner, Runner
from mlx_platform.serving.signature import Signature
from mlx_platform.serving.statistics import RunTimes
from mlx_platform.serving.warmup import WarmUp, warm_up
from mlx_platform.traffic.writer import TrafficWriter

Elsewhere = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Does a piece of work on some thread, and gives what it returns."""


class Engine:
    """One loaded model at work. Lives on the event loop; `start` it before anything else.

    Args:
        model: the loaded package.
        settings: limits and batching.
        metrics: where batches and stages are counted.
        writer: the traffic log, if there is one.
        runner: what computes a batch, by default the model itself.
        caches: what is asked before a run.
        capture: where requests are kept in debug mode, for all versions of a server.
        guard: what keeps inputs away that have ended the process before; the runner runs through it.
    """

    def __init__(
        self,
        model: Model,
        settings: ServingSettings,
        metrics: Metrics,
        writer: TrafficWriter | None,
        *,
        runner: Runner | None = None,
        caches: Caches | None = None,
        guard: Guard | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.model = model
        self.runner: Runner = guard or runner or ModelRunner(model)
        self.guard = guard
        self.caches = caches or Caches()
        metrics.sources.append(self.caches.samples)
        self.metrics = metrics
        self.writer = writer
        self.signature = Signature.of(model.spec.inputs, model.spec.outputs)
        self.max_rows = min(settings.max_rows, model.spec.limits.max_rows)
        self.warm = WarmUp({}, rowwise=True, size=BatchSize(0))
        self.draining = False  # not ready any more, but what still comes is answered
        self.closed = False
        self.covered = False  # something else answers where the model cannot
        self.batcher: Batcher | None = None
        self.ready_since = 0.0  # in seconds of Unix time; 0 while the model is not loaded
        self.runs = RunTimes()
        self.observation = Observation(model, settings, capture or Capture())
        self.loneliness = Loneliness(self._why_alone)
        metrics.sources += (self.observation.samples, self.loneliness.samples)
        self._live: LiveDrift | None = None
        if settings.drift.enabled and model.package.baseline_path is not None:
            self._live = LiveDrift(model.package, settings.drift)
            metrics.sources.append(self._live.samples)
        self._settings = settings
        # All that the network gives, as everywhere else: the answers are made from some of them.
        self._outputs = tuple(spec.name for spec in model.session.outputs)
        self._preparation = Preparation(model, settings)
        metrics.sources.append(self._preparation.samples)

    @property
    def ready(self) -> bool:
        """Whether new requests should be sent here."""
        if self.batcher is None or self.draining or self.batcher.stuck:
            return False
        return self.covered or not self.runner.down

    async def start(self, elsewhere: Elsewhere | None = None) -> None:
        """Check the model against its golden cases, time it, and open the queue.

        Args:
            elsewhere: where it runs for that; on the threads of its pipeline by default.

        Raises:
            GateFailedError: it does not give the answers that it was registered with.
        """
        if elsewhere is None:
            elsewhere = partial(asyncio.get_running_loop().run_in_executor, self._preparation.threads)
        problems = await elsewhere(self.model.self_check)
        if problems:
            raise GateFailedError(
                f"{self.model.name}/{self.model.version} does not answer as it did when it was registered: "
                f"{problems[0]}",
                hint="It was built for another runtime or machine, or its golden cases are wrong.",
                problems=problems,
            )
        await self._preparation.start()
        await elsewhere(self.caches.check)
        self.caches.start()
        settings = self._settings
        rows = None if settings.max_batch_size == "auto" else settings.max_batch_size
        self.warm = await elsewhere(
            partial(
                warm_up,
                self.model,
                self.signature,
                rows,
                longest=tuning.LATENCY_SHARE * settings.request_timeout_ms / 1000,
                workers=tuning.most_workers(settings, self.model.session),
            ),
        )
        self.batcher = Batcher(
            self.runner.run,
            tuning.policy(settings, self.model.session, self.warm),
            self._count_batch,
            stop_run=self.runner.stop,
            costs=Costs(self.warm.seconds, self.warm.cells, self.warm.size.rows),
            padding=self.warm.padding,
        )
        self.ready_since = time.time()
        self.metrics.sources.append(self.batcher.samples)

    def _count_batch(self, rows: int, seconds: tuple[float, float, float]) -> None:
        self.metrics.batch_rows.observe(rows)
        self.runs.observe(rows, seconds)
        if self.batcher is not None:
            self.loneliness.observe(rows, self.batcher.in_flight + 1 - self.batcher.policy.workers)

    def _why_alone(self) -> str:
        if self.batcher is not None and self.batcher.policy.max_rows == 1:
            return "max_batch_size is 1"
        if not self.signature.batched:
            return "an input or output of the model has no first dimension that varies"
        if not self.warm.rowwise:
            return "the model does not answer row by row"
        return "no two requests agree in outputs, datatypes and dimensions"

    async def infer(self, request: InferRequest, exchange: Exchange) -> Tensors:
        """The outputs that a protocol request asks for.

        Raises:
            Refusal: why there are none.
        """
        exchange.inputs = exchange.feeds = request.feeds
        exchange.cells = request.cells
        rows = exchange.rows = self.signature.rows(request.feeds)
        self._check_rows(rows)
        outputs = await self._ask(request.feeds, rows, request.outputs, exchange)
        exchange.outputs = exchange.logits = outputs
        return outputs

    async def predict(self, rows: Any, exchange: Exchange) -> Columns:
        """The answer columns of raw rows.

        Raises:
            Refusal: why there are none.
        """
        began = time.monotonic()
        try:
            columns = self.model.rows_from_json(rows)
        except UsageError as error:
            raise malformed(complaint(error, rows, self.model)) from error
        return await self.answer(columns, exchange, began)

    async def answer(self, columns: Columns, exchange: Exchange, began: float) -> Columns:
        """The answer columns of raw columns; work on them began at `began` on `time.monotonic`.

        Raises:
            Refusal: why there are none.
        """
        count = exchange.rows = row_count(columns)
        self._check_rows(count)
        exchange.inputs = columns
        size = self.model.spec.fixed_rows
        if size is None:
            encoded = await self._encode(columns, exchange)
            exchange.feeds = encoded.feeds
            exchange.seconds["pre"] = time.monotonic() - began
            rows_in = encoded.parts.total if encoded.parts is not None else count
            tensors = await self._ask(encoded.feeds, rows_in, self._outputs, exchange)
            exchange.logits = _merged(encoded, tensors)
        else:
            await self._predict_in_steps(columns, size, exchange)
        began = time.monotonic()
        exchange.outputs = await self._decode(exchange.logits, count)
        exchange.seconds["post"] = time.monotonic() - began
        return exchange.outputs

    async def _predict_in_steps(self, columns: Columns, size: int, exchange: Exchange) -> None:
        """Ask a model that takes exactly `size` rows as often as needed; the last time is filled up."""
        began = time.monotonic()
        feeds: list[Tensors] = []
        for start in range(0, exchange.rows, size):
            chunk = {name: column[start : start + size] for name, column in columns.items()}
            feeds.append((await self._encode(filled(chunk, size), exchange)).feeds)
        exchange.seconds["pre"] = time.monotonic() - began
        exchange.feeds = _stacked(feeds, exchange.rows)
        compute = partial(self._compute_steps, feeds, size, exchange)
        exchange.logits = await self._remembered(exchange.feeds, self._outputs, exchange, compute)

    async def _compute_steps(self, feeds: list[Tensors], size: int, exchange: Exchange) -> Tensors:
        jobs = [self._compute(feed, size, self._outputs, exchange) for feed in feeds]
        try:
            answers = await asyncio.gather(*jobs)
        except Refusal:
            self._drop_jobs(exchange)
            raise
        return _stacked(answers, exchange.rows)

    def abandon(self, exchange: Exchange) -> None:
        """Drop what was not started for a client that has gone."""
        exchange.abandoned = True
        self._drop_jobs(exchange)

    def _drop_jobs(self, exchange: Exchange) -> None:
        if exchange.waiting is not None:
            exchange.waiting.cancel()
        if self.batcher is not None:
            for job in exchange.jobs:
                self.batcher.abandon(job)

    def finish(self, exchange: Exchange, *, status: int, error: str, total: float) -> None:
        """Count an exchange's stages and write it to the traffic log."""
        self.metrics.count_prediction(status)
        timings = {"total": total * 1000}
        for stage, seconds in exchange.seconds.items():
            self.metrics.stages[stage].observe(seconds)
            timings[stage] = seconds * 1000
        if "queue" in exchange.seconds:
            self.metrics.queue_wait.observe(exchange.seconds["queue"])
        if self.writer is not None:
            write_record(exchange, self.model, self.writer, status=status, error=error, timings_ms=timings)
        if self._live is not None and status == 200:
            self._live.offer(exchange)
        self.observation.finish(exchange, status, error, total)
        exchange.jobs.clear()  # an error of theirs may hold the exchange

    async def close(self, patience: float) -> None:
        """Finish what was accepted, for at most `patience` seconds."""
        self.draining = self.closed = True
        if self.batcher is not None:
            await self.batcher.close(patience)
            await self.batcher.wait_for_runs()
        await self.caches.close()
        self._preparation.close()
        self.observation.close()
        if self._live is not None:
            self._live.close()

    def _check_rows(self, rows: int) -> None:
        if not rows:
            raise malformed("The request has no rows.")
        if rows > self.max_rows:
            raise malformed(f"A request takes at most {self.max_rows:,} rows.")

    async def _encode(self, columns: Columns, exchange: Exchange) -> Encoded:
        prepared = self.caches.prepared

        async def compute() -> Tensors:
            encoded = await self._preparation.encode(columns, exchange)
            exchange.step_seconds = encoded.seconds
            return encoded.packed()

        try:
            if prepared is None or self.model.has_cheap_steps:
                arrays = await compute()
            else:
                arrays = await prepared.answer(columns, exchange, compute)
        except UsageError as error:
            raise malformed(complaint(error, (), self.model)) from error
        except MlxError as error:
            raise refusal_of(error, draining_now=self.draining) from error
        if exchange.abandoned:
            raise asyncio.CancelledError
        return self.model.restored(arrays)

    async def _decode(self, tensors: Tensors, rows: int) -> dict[str, Array]:
        try:
            return await self._preparation.decode(tensors, rows)
        except UsageError as error:
            raise Refusal(422, "The model's outputs for these rows cannot be turned into answers.") from error

    async def _ask(self, feeds: Tensors, rows: int, outputs: tuple[str, ...], exchange: Exchange) -> Tensors:
        """The outputs of feeds, from the cache or from a run."""
        if self.caches.answers is None:
            return await self._compute(feeds, rows, outputs, exchange)
        compute = partial(self._compute, feeds, rows, outputs, exchange)
        return await self._remembered(feeds, outputs, exchange, compute)

    async def _remembered(
        self,
        feeds: Tensors,
        outputs: tuple[str, ...],
        exchange: Exchange,
        compute: Callable[[], Awaitable[Tensors]],
    ) -> Tensors:
        answers = self.caches.answers
        return await (compute() if answers is None else answers.answer(feeds, outputs, exchange, compute))

    async def _compute(
        self, feeds: Tensors, rows: int, outputs: tuple[str, ...], exchange: Exchange
    ) -> Tensors:
        if exchange.abandoned:
            raise asyncio.CancelledError  # while the caches were asked
        if self.guard is None:
            return await self._run(feeds, rows, outputs, exchange, joins=True)
        ticket = self.guard.admit(feeds)
        answered = False
        try:
            answer = await self._run(feeds, rows, outputs, exchange, joins=not ticket.suspect)
            answered = True
        finally:
            self.guard.release(ticket, answered=answered)
        return answer

    async def _run(
        self, feeds: Tensors, rows: int, outputs: tuple[str, ...], exchange: Exchange, *, joins: bool
    ) -> Tensors:
        job = self._submit(feeds, rows, outputs, exchange, joins=joins)
        exchange.jobs.append(job)
        exchange.computed = True
        try:
            answer = await job.future
        except MlxError as error:
            raise refusal_of(error, draining_now=self.draining) from error
        except MemoryError as error:
            raise out_of_memory() from error
        finally:
            del job  # an error holds this frame, and the job the error: they would stay until somebody looks
        exchange.seconds["queue"] = answer.queue_seconds
        exchange.seconds["inference"] = answer.run_seconds
        exchange.batch_rows = answer.batch_rows
        return answer.outputs

    def _submit(
        self, feeds: Tensors, rows: int, outputs: tuple[str, ...], exchange: Exchange, *, joins: bool
    ) -> Job:
        if self.batcher is None:
            raise not_ready()
        if exchange.abandoned:
            raise asyncio.CancelledError
        joins = joins and self.signature.batched and self.warm.rowwise and _share_rows(feeds, rows)
        try:
            return self.batcher.submit(
                feeds, rows, outputs, exchange.deadline, joins=joins, priority=exchange.priority
            )
        except MlxError as error:
            raise refusal_of(error, draining_now=self.draining) from error


def _merged(encoded: Encoded, tensors: Tensors) -> Tensors:
    """The outputs of rows that may have been taken in parts."""
    try:
        return encoded.merged(tensors)
    except UsageError as error:
        raise Refusal(422, "The model's outputs for parts of a row cannot be put together.") from error


def _share_rows(feeds: Tensors, rows: int) -> bool:
    return all(array.shape[0] == rows for array in feeds.values())


def _stacked(parts: Sequence[Tensors], rows: int) -> Tensors:
    if any(array.ndim == 0 for array in parts[0].values()):
        raise Refusal(422, "The model does not answer row by row: ask it for tensors, on its infer route.")
    return {name: np.concatenate([part[name] for part in parts])[:rows] for name in parts[0]}
