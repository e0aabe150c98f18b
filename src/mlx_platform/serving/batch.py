"""What a worker does with the jobs of one batch: join, run, split, and when it fails, find the culprit."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlx_platform.core.errors import DeadlineError, MlxError, UnavailableError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.job import Answer, Job, NotRowwiseError
from mlx_platform.serving.padding import Padding

Run = Callable[[Tensors, tuple[str, ...], float], Mapping[str, Array]]
"""Run the model on feeds for some outputs, for at most so many seconds, or raise a DeadlineError."""

_PATIENCE = 5.0  # a run is cut short only after so many times the seconds that it should take


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs on their way through one worker.

    Attributes:
        jobs: of one group.
        padding: how those of different lengths stand in one run.
        expected: seconds that the run should take, 0 when nobody knows.
        limit: the most seconds of a run.
        searching: whether a batch that fails is halved; otherwise its jobs are left to run alone.
        started: when the worker was to begin.
        runs: how often the model was asked.
        seconds: that the last run took which went well: to join the inputs, in the model, and to part the
            outputs.
        rowwise: False once outputs did not have the rows of the inputs.
        too_slow: True once the limit ended a run.
        starved: True once there was not enough memory, and fewer rows may do, or nothing beside the run.
        stopped: True once nobody waited for it any more.
    """

    jobs: Sequence[Job]
    padding: Padding | None = None
    expected: float = 0.0
    limit: float = math.inf
    searching: bool = True
    started: float = 0.0
    runs: int = 0
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rowwise: bool = True
    too_slow: bool = False
    starved: bool = False
    stopped: bool = False
    _lost: bool = False
    _thread: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def rows(self) -> int:
        return sum(job.rows for job in self.jobs)

    @property
    def divisible(self) -> bool:
        """Whether its rows may stand in several runs."""
        return self.rows > 1 and self.jobs[0].group.joins

    @property
    def deadline(self) -> float:
        """When the last of the callers has been told that it is too late."""
        return max(job.deadline for job in self.jobs)

    @property
    def unwanted(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return all(job.future.done() for job in self.jobs)

    def stop(self, stop_run: Callable[[int], None]) -> bool:
        """End the run that goes on, if one does, and begin no other; True the first time.

        A run that was about to begin is missed: call this again while the batch is there.

        Args:
            stop_run: ends the run that a thread is in.
        """
        with self._guard:
            first, self.stopped = not self.stopped, True
            # Under the guard: the thread cannot have gone on to somebody else's run.
            if self._thread:
                stop_run(self._thread)
            return first

    def lose(self) -> None:
        """Give the worker up that is in a run of this batch."""
        with self._guard:
            self._lost = True

    def solve_on_thread(self, run: Run) -> bool:
        """`solve` on a worker; False when the worker was given up meanwhile."""
        with self._guard:
            self._thread = threading.get_ident()
        try:
            self.solve(run)
        except BaseException as error:  # noqa: BLE001 - a worker never dies, and nobody waits for ever
            for job in self.jobs:
                job.error = job.error or error
        with self._guard:
            self._thread = 0
            return not self._lost

    def solve(self, run: Run) -> None:
        """Leave an answer, an error or nothing on every job; raise nothing.

        Jobs with nothing are to be run again: alone, or in smaller batches where memory ran out, and with
        nothing beside them where these cannot be smaller. A batch that fails is halved until the failing job
        stands alone, so that it spoils no other's answer. That takes two runs for each halving; when there is
        more than one culprit, those who are left run alone.
        """
        self._solve(self.jobs, run, 1 + 2 * (len(self.jobs) - 1).bit_length())

    def _solve(self, jobs: Sequence[Job], run: Run, budget: int) -> None:
        if self.stopped or self.runs >= budget:
            return
        try:
            self._run_together(jobs, run)
        except Exception as raised:  # noqa: BLE001 - whatever a foreign model raises belongs to its callers
            error = _without_frames(raised)
        else:
            return
        if self.too_slow:
            return
        if isinstance(error, MemoryError) and not jobs[0].group.exclusive:
            self.starved = True
        elif len(jobs) == 1:
            # Cut short for the others' sake, it has its run again once they have had theirs.
            if not (isinstance(error, DeadlineError) and self._has_others(jobs[0])):
                jobs[0].error = error
        elif not isinstance(error, NotRowwiseError):
            self._search(jobs, run, budget, error)

    def _search(self, jobs: Sequence[Job], run: Run, budget: int, error: Exception) -> None:
        if self.searching:
            half = (len(jobs) + 1) // 2
            self._solve(jobs[:half], run, budget)
            self._solve(jobs[half:], run, budget)
        elif isinstance(error, UnavailableError):
            # A device that fails most of the time fails everybody: more runs would only keep it busy.
            for job in jobs:
                job.error = error

    def _has_others(self, job: Job) -> bool:
        """Whether jobs beside this one still have neither an answer nor an error."""
        return any(other.answer is None and other.error is None for other in self.jobs if other is not job)

    def _run_together(self, jobs: Sequence[Job], run: Run) -> None:
        first = jobs[0]
        alone = len(jobs) == 1
        rows = first.rows if alone else sum(job.rows for job in jobs)
        started = time.monotonic()
        last = alone and not self._has_others(first)
        timeout = _timeout(jobs, started, self.expected, last=last)
        length = 0 if alone else _longest(jobs)
        feeds = first.feeds if alone else self._join(jobs, length)
        joined = time.monotonic()
        self.runs += 1
        try:
            outputs = run(feeds, first.outputs, min(timeout, self.limit))
        except DeadlineError:
            self.too_slow = self.limit < timeout
            raise
        ended = time.monotonic()
        seconds = ended - started
        if alone and not first.is_part:
            self.seconds = (joined - started, ended - joined, 0.0)
            first.answer = Answer(outputs, first.started - first.admitted, seconds, rows)
            return
        if any(array.ndim == 0 or array.shape[0] != rows for array in outputs.values()):
            self.rowwise = False
            raise NotRowwiseError
        start = 0
        for job in jobs:
            stop = start + job.rows
            own = {name: array[start:stop] for name, array in outputs.items()}
            if length and job.length != length and self.padding is not None:
                own = {name: self.padding.cut(name, array, job.length) for name, array in own.items()}
            job.answer = Answer(own, job.started - job.admitted, seconds, rows)
            start = stop
        self.seconds = (joined - started, ended - joined, time.monotonic() - ended)

    def _join(self, jobs: Sequence[Job], length: int) -> dict[str, Array]:
        """The inputs row under row; `length` is what those are filled up to that vary, 0 when none does."""
        feeds: dict[str, Array] = {}
        for name in jobs[0].feeds:
            arrays = [job.feeds[name] for job in jobs]
            if length and self.padding is not None and name in self.padding.fill:
                feeds[name] = self.padding.join(name, arrays, length)
            else:
                feeds[name] = np.concatenate(arrays)
        return feeds


def _without_frames(error: Exception) -> Exception:
    """An error that is meant for callers, without the frames that hold the jobs which will hold it.

    What refers to itself stays in memory until somebody looks for it, which is seldom.
    """
    link: BaseException | None = error if isinstance(error, MlxError) else None
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _longest(jobs: Sequence[Job]) -> int:
    """The length of the longest sequence; 0 when all are equally long."""
    first = jobs[0].length
    if not first or all(job.length == first for job in jobs):
        return 0
    return max(job.length for job in jobs)


def _timeout(jobs: Sequence[Job], now: float, expected: float, *, last: bool) -> float:
    """The seconds a run may take: all that is left for the last job of a batch, half of it while others wait.

    Half, because whoever hangs must be found while its neighbours still have time; and never less than a
    healthy run needs, because cutting those under load would only add to it.
    """
    remaining = [job.deadline - now for job in jobs]
    least, most = min(remaining), max(remaining)
    if last:
        least = 2 * most
    if most <= 0:
        raise DeadlineError("The deadline passed before the model could run.")
    return min(max(least / 2, _PATIENCE * expected), most)
