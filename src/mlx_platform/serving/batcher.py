"""Dynamic batching: requests that fit together share a run, and a lone one never waits for company.

A batch leaves when it is full, when its oldest request has waited `max_delay`, or as soon as nobody else is
expected: no fewer requests are in flight than lately were together. While the workers are busy the queue
fills by itself, so that with no delay at all a loaded server still batches.

Everything here runs on one event loop but `Batch.solve`, which runs on worker threads, or on the loop itself
for models that are faster than a change of threads.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from mlx_platform.core.errors import DeadlineError, UnavailableError
from mlx_platform.core.tensors import Tensors
from mlx_platform.serving.batch import Batch, Run
from mlx_platform.serving.job import Answer, Job, NotRowwiseError, QueueFullError, group_key
from mlx_platform.serving.waiting import Waiting

_SWEEP_SECONDS = 0.05  # how late a deadline may be noticed
_INLINE_LIMIT = 0.05  # seconds that a run may hold up the event loop, once
_GRACE_SECONDS = 1.0
_STUCK_SECONDS = 5.0  # how long past its last deadline a run may go on before it is taken for lost
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """`max_rows` of a run, `max_delay` in seconds, `max_queue_rows` waiting.

    `inline` runs on the event loop, without workers, until a run turns out to be slow after all.
    """

    max_rows: int = 32
    max_delay: float = 0.0
    max_queue_rows: int = 1024
    workers: int = 1
    inline: bool = False


class Batcher:
    """Takes requests on the event loop that it was made on, and gives each exactly its own rows back.

    Args:
        run: the model.
        policy: when a batch leaves, and how much may wait.
        on_batch: told the rows of every run that went well at once.
    """

    def __init__(self, run: Run, policy: BatchPolicy, on_batch: Callable[[int], None]) -> None:
        self.policy = policy
        self.in_flight = 0  # requests, and parts of long ones, that wait or run
        self.expired = 0
        self.abandoned = 0
        self.split_batches = 0
        self.restarts = 0
        self._run = run
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._waiting = Waiting()
        self._running: set[Batch] = set()
        self._crowd = 1.0
        self._joins = True
        self._closed = False
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._seconds_per_row = 0.0
        self._work: SimpleQueue[Batch | None] = SimpleQueue()
        self.inline = policy.inline
        if not policy.inline:
            self._start_workers()

    @property
    def queued_rows(self) -> int:
        return self._waiting.rows

    @property
    def stuck(self) -> bool:
        """Whether a run goes on long after everybody who waited for it was told that it is too late."""
        now = time.monotonic()
        return any(now > batch.deadline + _STUCK_SECONDS for batch in tuple(self._running))

    def submit(
        self, feeds: Tensors, rows: int, outputs: tuple[str, ...], deadline: float, *, joins: bool
    ) -> Job:
        """Queue a request; await its `future` for the answer.

        Args:
            feeds: checked inputs by name.
            rows: what counts against the limits.
            outputs: the names to compute.
            deadline: on `time.monotonic`.
            joins: whether the first dimension of all feeds is the row.

        Raises:
            QueueFullError: there is no room.
            UnavailableError: the batcher was closed.
        """
        if self._closed:
            raise UnavailableError("The server is shutting down.")
        # A request longer than the whole queue would otherwise never be taken.
        if self._waiting.rows + rows > self.policy.max_queue_rows and self._waiting.rows:
            raise QueueFullError(self._retry_after())
        joins = joins and self._joins
        if joins and rows > self.policy.max_rows:
            return self._submit_parts(feeds, rows, outputs, deadline)
        key = group_key(feeds, outputs) if joins else None
        future = self._loop.create_future()
        return self._enqueue(Job(feeds, rows, outputs, deadline, time.monotonic(), future, key))

    def abandon(self, job: Job) -> None:
        """Forget a request whose caller has gone; what has not started never will."""
        if not job.future.done():
            self.abandoned += 1
        for part in (*job.parts, job):
            self._give_up(part)

    async def close(self, patience: float) -> None:
        """Take nothing new, wait for what was taken, and give up on the rest after `patience` seconds."""
        self._closed = True
        self._wake()
        end = time.monotonic() + patience
        # Woken counts too: the last part of a long request may send it in again as a whole.
        while (self.in_flight or self._woken) and time.monotonic() < end:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.005)
        error = UnavailableError("The server was shut down before there was an answer.")
        waiting = self._waiting.clear()
        self.in_flight -= len(waiting)
        _fail(waiting, error)
        _fail([job for batch in self._running for job in batch.jobs], error)
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        for _ in range(self.policy.workers):
            self._work.put(None)

    async def wait_for_runs(self) -> None:
        """Wait for runs that go on although nobody waits any more; the watchdog ends them at their deadline.

        A process that ends while its runtime is still computing is aborted by the runtime.
        """
        end = max((batch.deadline for batch in self._running), default=0.0) + _GRACE_SECONDS
        while self._running and time.monotonic() < end:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.005)

    def _start_workers(self) -> None:
        for _ in range(self.policy.workers):
            # Daemons: a run that hangs inside of the runtime must not keep the process from ending.
            threading.Thread(target=self._serve_work, name="mlx-batch", daemon=True).start()

    def _submit_parts(self, feeds: Tensors, rows: int, outputs: tuple[str, ...], deadline: float) -> Job:
        now = time.monotonic()
        whole = Job(feeds, rows, outputs, deadline, now, self._loop.create_future(), None, queued=False)
        key = group_key(feeds, outputs)
        for start in range(0, rows, self.policy.max_rows):
            stop = min(start + self.policy.max_rows, rows)
            slices = {name: array[start:stop] for name, array in feeds.items()}
            future: asyncio.Future[Answer] = self._loop.create_future()
            part = Job(slices, stop - start, outputs, deadline, now, future, key, is_part=True)
            future.add_done_callback(lambda done: self._assemble(whole, done))
            whole.parts.append(self._enqueue(part))
        return whole

    def _assemble(self, whole: Job, done: asyncio.Future[Answer]) -> None:
        """Put the answers of the parts together once the last is there; the first error answers for all."""
        error = None if done.cancelled() else done.exception()
        if whole.future.done():
            return
        if isinstance(error, NotRowwiseError):
            self._give_up_parts(whole)
            again = Job(
                whole.feeds, whole.rows, whole.outputs, whole.deadline, whole.admitted, whole.future, None
            )
            whole.parts = [self._enqueue(again)]
        elif error is not None:
            self._give_up_parts(whole)
            whole.future.set_exception(error)
        elif all(part.future.done() and not part.future.cancelled() for part in whole.parts):
            whole.future.set_result(_assembled(whole))

    def _give_up_parts(self, whole: Job) -> None:
        for part in whole.parts:
            self._give_up(part)

    def _give_up(self, job: Job) -> None:
        if self._waiting.remove(job):
            self.in_flight -= 1
        job.future.cancel()

    def _enqueue(self, job: Job) -> Job:
        self._waiting.add(job)
        self.in_flight += 1
        self._crowd = max(self._crowd, self.in_flight)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        self._wake()
        return job

    def _wake(self) -> None:
        # Through the loop, so that all that arrived in this tick is there when the batch is formed.
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._woken = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            while self._waiting and len(self._running) < self.policy.workers:
                if not self._start_next():
                    return
        except Exception as error:  # the pump goes on for those who come later
            _logger.exception("The batcher could not form a batch.")
            self.restarts += 1
            waiting = self._waiting.clear()
            self.in_flight -= len(waiting)
            _fail(waiting, error)

    def _start_next(self) -> bool:
        """Form and start the next batch; False when the loop should first do something else."""
        now = time.monotonic()
        delay = self.policy.max_delay if self._company_expected() else 0.0
        key, oldest = self._waiting.next_group(self.policy.max_rows, now - delay)
        if key is None:
            self._timer = self._loop.call_later(oldest + delay - now, self._wake)
            return False
        jobs = self._waiting.take(key, self.policy.max_rows)
        live = tuple(job for job in jobs if job.deadline > now and not job.future.done())
        if len(live) < len(jobs):
            self._expire([job for job in jobs if job not in live])
        if not live:
            return True
        for job in live:
            job.started = now
        batch = Batch(live, _INLINE_LIMIT if self.inline else math.inf)
        self._crowd = (self._crowd + self.in_flight) / 2
        self._running.add(batch)
        if not self.inline:
            self._work.put(batch)
            return True
        batch.solve(self._run, self._seconds_per_row)
        if batch.too_slow:
            # Nothing of the sort may hold up the event loop again.
            self.inline = False
            self._start_workers()
            batch.limit, batch.too_slow = math.inf, False
            self._work.put(batch)
            return True
        self._finish(batch)
        return False  # answers go out before the next batch; `_finish` has asked for it

    def _company_expected(self) -> bool:
        return not self._closed and self._joins and self.in_flight < self._crowd - 0.5

    def _serve_work(self) -> None:
        while (batch := self._work.get()) is not None:
            try:
                batch.solve(self._run, self._seconds_per_row)
            except BaseException as error:  # noqa: BLE001 - a worker never dies, and nobody waits for ever
                for job in batch.jobs:
                    job.error = job.error or error
            try:
                self._loop.call_soon_threadsafe(self._finish, batch)
            except RuntimeError:
                return  # the loop is closed: the server has ended without this run

    def _finish(self, batch: Batch) -> None:
        self._running.discard(batch)
        self.in_flight -= len(batch.jobs)
        for job in batch.jobs:
            if job.future.done():
                continue
            if job.answer is not None:
                job.future.set_result(job.answer)
            else:
                job.future.set_exception(job.error or UnavailableError("The run left no answer."))
        if self._joins and not batch.rowwise:
            _logger.warning("The model does not answer row by row: from now on every request runs alone.")
            self._joins = False
        answer = batch.jobs[0].answer
        if batch.runs == 1 and answer is not None:
            per_row = answer.run_seconds / answer.batch_rows
            weight = 0.1 if self._seconds_per_row else 1.0
            self._seconds_per_row += (per_row - self._seconds_per_row) * weight
            self._on_batch(answer.batch_rows)
        else:
            self.split_batches += 1
        if self._waiting:
            self._wake()

    def _sweep(self) -> None:
        """Tell those whose deadline has passed, whether they wait or run."""
        now = time.monotonic()
        late = [job for job in self._waiting if job.deadline <= now]
        for job in late:
            self._waiting.remove(job)
        self._expire(late)
        for batch in self._running:
            for job in batch.jobs:
                if job.deadline <= now and not job.future.done():
                    self.expired += 1
                    job.future.set_exception(
                        DeadlineError("The deadline passed while the model was running.")
                    )
        again = self.in_flight > 0
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep) if again else None

    def _expire(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.in_flight -= 1
            if not job.future.done():
                self.expired += 1
                job.future.set_exception(DeadlineError("The deadline passed in the queue."))

    def _retry_after(self) -> int:
        return max(1, math.ceil(self._waiting.rows * self._seconds_per_row / self.policy.workers))


def _fail(jobs: Iterable[Job], error: BaseException) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)


def _assembled(whole: Job) -> Answer:
    answers = [part.future.result() for part in whole.parts]
    outputs = {
        name: np.concatenate([answer.outputs[name] for answer in answers]) for name in answers[0].outputs
    }
    queued = min(answer.queue_seconds for answer in answers)
    # The parts follow each other on the workers: the rest of the time was spent in or between runs.
    running = time.monotonic() - whole.admitted - queued
    return Answer(outputs, queued, running, max(answer.batch_rows for answer in answers))
