"""Dynamic batching: requests that fit together share a run, and a lone one never waits for company.

A batch leaves when it is full, or as soon as nobody else is expected in time: `Company` says who is, `Costs`
whether waiting for them would pay, and no request waits longer than `max_delay`. While the workers are busy
the queue fills by itself, so that with no delay at all a loaded server still batches.

Everything here runs on one event loop but `Batch.solve`, which runs on worker threads, or on the loop itself
for runs that are faster than a change of threads.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from mlx_platform.core.errors import DeadlineError, UnavailableError
from mlx_platform.core.tensors import Tensors
from mlx_platform.serving.admission import Admission
from mlx_platform.serving.batch import Batch, Run
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.costs import Costs
from mlx_platform.serving.grouping import Grouping
from mlx_platform.serving.job import (
    HIGH,
    NORMAL,
    Answer,
    Job,
    NotRowwiseError,
    assembled,
    fail,
    is_answered,
)
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.padding import Padding
from mlx_platform.serving.turns import Turns
from mlx_platform.serving.waiting import Waiting
from mlx_platform.serving.workers import Workers

_SWEEP_SECONDS = 0.05  # how late a deadline may be noticed
_INLINE_LIMIT = 0.05  # seconds that a run may hold up the event loop, once
_GRACE_SECONDS = 1.0
_STUCK_SECONDS = 5.0  # how long past its last deadline a run may go on before it is taken for lost
_FAILING_WEIGHT = 0.2  # of the last batch in the share of those that fail
_logger = logging.getLogger(__name__)


class Batcher:
    """Takes requests on the event loop that it was made on, and gives each exactly its own rows back.

    Args:
        run: the model.
        policy: when a batch leaves, and how much may wait.
        on_batch: told the rows of every run that went well at once, and `Batch.seconds`.
        stop_run: ends the run that a thread is in.
        costs: what runs take.
        padding: how sequences of different lengths may share a run; None when they may not.
    """

    def __init__(
        self,
        run: Run,
        policy: BatchPolicy,
        on_batch: Callable[[int, tuple[float, float, float]], None],
        *,
        stop_run: Callable[[int], None] = lambda _thread: None,
        costs: Costs | None = None,
        padding: Padding | None = None,
    ) -> None:
        self.policy = policy
        self.in_flight = 0  # requests, and parts of long ones, that wait or run
        self.expired = 0
        self.abandoned = 0
        self.split_batches = 0
        self.starved_batches = 0
        self.stopped_batches = 0
        self.restarts = 0
        self.inline_cells = policy.inline_cells
        self._run = run
        self._on_batch = on_batch
        self._stop_run = stop_run
        self._costs = costs or Costs({}, 0, policy.max_rows)
        self._padding = padding
        self._loop = asyncio.get_running_loop()
        self._waiting = Waiting()
        self._grouping = Grouping(self._waiting, policy, self._costs, padding)
        self._turns = Turns(self._waiting, self._grouping, policy, self._costs)
        self._running: set[Batch] = set()
        self._admission = Admission(policy, self._waiting, self._running)
        self._workers = Workers(policy.workers, run, self._finish)
        self._failing = 0.0  # share of the last batches of several requests
        self._closed = False
        self._woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def queued_rows(self) -> int:
        return self._waiting.rows

    @property
    def inline(self) -> bool:
        """Whether there are runs on the event loop."""
        return self.inline_cells > 0

    @property
    def lost_workers(self) -> int:
        """Threads in a run that does not end, for which others have stepped in."""
        return self._workers.lost

    def samples(self) -> Iterator[Sample]:
        """What became of runs that did not end as they should."""
        yield Sample("mlx_stopped_batches", "Runs ended because nobody waited.", self.stopped_batches)
        yield Sample("mlx_starved_batches", "Runs that memory was not enough for.", self.starved_batches)
        yield Sample("mlx_lost_workers", "Threads in runs that do not end.", self.lost_workers, kind="gauge")

    @property
    def stuck(self) -> bool:
        """Whether a run goes on long after everybody who waited for it was told that it is too late."""
        now = time.monotonic()
        return any(now > batch.deadline + 2 * _STUCK_SECONDS for batch in tuple(self._running))

    def submit(
        self,
        feeds: Tensors,
        rows: int,
        outputs: tuple[str, ...],
        deadline: float,
        *,
        joins: bool,
        priority: int = NORMAL,
    ) -> Job:
        """Queue a request; await its `future` for the answer.

        Args:
            feeds: checked inputs by name.
            rows: what counts against the limits.
            outputs: the names to compute.
            deadline: on `time.monotonic`.
            joins: whether the first dimension of all feeds is the row.
            priority: HIGH, NORMAL or LOW; the lower run when no higher wait.

        Raises:
            QueueFullError: there is no room, or no chance of an answer by the deadline.
            UnavailableError: the batcher was closed.
        """
        if self._closed:
            raise UnavailableError("The server is shutting down.")
        now = time.monotonic()
        if joins and self._grouping.joins:
            group, length = self._grouping.find(feeds, rows, outputs)
            nbytes = rows * group.row_bytes
        else:
            group, length = self._waiting.alone, 0
            nbytes = sum(array.nbytes for array in feeds.values())
        if self._waiting.rows:
            # The urgent pass the queue that the guess is made of.
            self._admission.check(rows, nbytes, math.inf if priority == HIGH else deadline - now)
        future: asyncio.Future[Answer] = self._loop.create_future()
        job = Job(feeds, rows, outputs, deadline, now, future, group, priority, length, nbytes)
        if rows > 1 and group.joins and rows > (most := self._grouping.limit(group, now)):
            self._split(job, most)
        else:
            self._enqueue(job)
        return job

    def abandon(self, job: Job) -> None:
        """Forget a request whose caller has gone: it does not start, and what runs for nobody ends."""
        if not job.future.done():
            self.abandoned += 1
        self._give_up(job)
        self._stop_unwanted()

    async def close(self, patience: float) -> None:
        """Take nothing new, wait for what was taken, and give up on the rest after `patience` seconds."""
        self._closed = self._turns.hurried = True
        self._wake()
        end = time.monotonic() + patience
        # Woken counts too: the last part of a long request may send it in again as a whole.
        while (self.in_flight or self._woken) and time.monotonic() < end:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(0.005)
        error = UnavailableError("The server was shut down before there was an answer.")
        waiting = self._waiting.clear()
        self.in_flight -= len(waiting)
        fail(waiting, error)
        fail([job for batch in self._running for job in batch.jobs], error)
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._workers.close()

    async def wait_for_runs(self) -> None:
        """End the runs that go on although nobody waits any more, and wait until they have.

        A process that ends while its runtime is still computing is aborted by the runtime.
        """
        end = time.monotonic() + _GRACE_SECONDS
        while self._running and time.monotonic() < end:
            self._stop_unwanted()
            await asyncio.sleep(0.005)

    def _split(self, whole: Job, most_rows: int) -> None:
        """Queue a long request in parts."""
        for start in range(0, whole.rows, most_rows):
            stop = min(start + most_rows, whole.rows)
            part = whole.part(start, stop, self._loop.create_future())
            part.future.add_done_callback(partial(self._assemble, whole))
            whole.parts.append(part)
            self._enqueue(part)

    def _assemble(self, whole: Job, done: asyncio.Future[Answer]) -> None:
        """Put the answers of the parts together once the last is there; the first error answers for all."""
        error = None if done.cancelled() else done.exception()
        if whole.future.done():
            return
        if isinstance(error, NotRowwiseError):
            self._give_up_parts(whole)
            whole.parts = []
            whole.group, whole.is_part = self._waiting.alone, False
            self._enqueue(whole)
        elif error is not None:
            self._give_up_parts(whole)
            whole.future.set_exception(error)
        elif all(is_answered(part) for part in whole.parts):
            whole.future.set_result(assembled(whole))

    def _give_up_parts(self, whole: Job) -> None:
        for part in whole.parts:
            self._give_up(part)

    def _give_up(self, job: Job) -> None:
        for part in job.parts:
            self._give_up(part)
        if self._waiting.remove(job):
            self.in_flight -= 1
        job.future.cancel()

    def _enqueue(self, job: Job) -> None:
        job.cost = job.rows * job.group.pace
        self._waiting.add(job)
        self.in_flight += 1
        self._turns.came(job, self.in_flight)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        self._wake()

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
            while self._waiting and self._turns.may_start(self._running):
                if not self._start_next():
                    return
        except Exception as error:  # the pump goes on for those who come later
            _logger.exception("The batcher could not form a batch.")
            self.restarts += 1
            waiting = self._waiting.clear()
            self.in_flight -= len(waiting)
            fail(waiting, error)

    def _start_next(self) -> bool:
        """Form and start the next batch; False when the loop should first do something else."""
        now = time.monotonic()
        group, again = self._turns.choose(now, self.in_flight)
        if group is None:
            self._timer = self._loop.call_later(again - now, self._wake)
            return False
        if not self._turns.may_join(group, now, self._running):
            return False  # the run that ends first asks again
        jobs = self._waiting.take(group, self._turns.room(group, now, len(self._running)))
        live, rows = [], 0
        for job in jobs:
            if job.deadline > now and not job.future.done():
                job.started = now
                rows += job.rows
                live.append(job)
            else:
                self._expire((job,))
        if not live:
            return True
        batch = Batch(live, self._padding, self._costs.seconds(group, rows), started=now)
        batch.searching = self._failing <= 0.5
        self._turns.left(self.in_flight)
        self._running.add(batch)
        if self.inline_cells and self._fits_inline(batch, rows):
            return self._run_inline(batch)
        self._workers.put(batch)
        return True

    def _fits_inline(self, batch: Batch, rows: int) -> bool:
        """Whether a run is no larger than those that were seen to be fast."""
        group = batch.jobs[0].group
        cells = group.cells * rows
        if not cells:
            cells = sum(array.size for array in batch.jobs[0].feeds.values())
        return cells <= self.inline_cells

    def _run_inline(self, batch: Batch) -> bool:
        batch.limit = _INLINE_LIMIT
        batch.solve(self._run)
        if batch.too_slow:
            # Nothing of the sort may hold up the event loop again.
            self.inline_cells = 0
            batch.limit, batch.too_slow, batch.runs = math.inf, False, 0
            self._workers.put(batch)
            return True
        self._finish(batch)
        return False  # answers go out before the next batch; `_finish` has asked for it

    def _finish(self, batch: Batch) -> None:
        self._running.discard(batch)
        self.in_flight -= len(batch.jobs)
        if batch.starved:
            self.starved_batches += 1
            if batch.divisible:
                self._grouping.shrink(batch)
        for job in batch.jobs:
            if job.future.done():
                continue
            if job.answer is not None:
                job.future.set_result(job.answer)
            elif job.error is not None:
                job.future.set_exception(job.error)
            else:
                self._run_again(job, batch)
        if self._grouping.joins and not batch.rowwise:
            _logger.warning("The model does not answer row by row: from now on every request runs alone.")
            self._grouping.joins = False
        if batch.runs == 1 and (answer := batch.jobs[0].answer) is not None:
            self._costs.learn(batch.jobs[0].group, answer.batch_rows, answer.run_seconds)
            self._on_batch(answer.batch_rows, batch.seconds)
            if len(batch.jobs) > 1:
                self._failing *= 1 - _FAILING_WEIGHT
        elif len(batch.jobs) > 1 and not batch.starved and not batch.stopped:
            self._failing += (1 - self._failing) * _FAILING_WEIGHT
            self.split_batches += 1
        if self._waiting:
            self._wake()

    def _run_again(self, job: Job, batch: Batch) -> None:
        """Queue a job that shared a batch's fate for no fault of its own."""
        if not batch.starved:
            job.group = self._waiting.alone
            self._enqueue(job)
        elif not batch.divisible:
            job.group = self._waiting.starved
            self._enqueue(job)
        elif job.rows > job.group.limit:
            self._split(job, job.group.limit)
        else:
            self._enqueue(job)

    def _sweep(self) -> None:
        """Tell those whose deadline has passed, whether they wait or run, and give up what does not end."""
        now = time.monotonic()
        late = [job for job in self._waiting if job.deadline <= now]
        for job in late:
            self._waiting.remove(job)
        self._expire(late)
        for batch in tuple(self._running):
            for job in batch.jobs:
                if job.deadline <= now and not job.future.done():
                    self.expired += 1
                    job.future.set_exception(
                        DeadlineError("The deadline passed while the model was running.")
                    )
            if now > batch.deadline + _STUCK_SECONDS and self._workers.replace(batch):
                _logger.error("A run does not end: its worker is given up, and another one steps in.")
                self.restarts += 1
                self._running.discard(batch)
                self.in_flight -= len(batch.jobs)
                self._wake()
        self._stop_unwanted()
        again = self.in_flight > 0
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep) if again else None

    def _stop_unwanted(self) -> None:
        """End the runs for which nobody waits any more."""
        for batch in self._running:
            if batch.unwanted:
                self.stopped_batches += batch.stop(self._stop_run)

    def _expire(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.in_flight -= 1
            if not job.future.done():
                self.expired += 1
                job.future.set_exception(DeadlineError("The deadline passed in the queue."))
