"""What a worker does with the jobs of one batch: join, run, split, and when it fails, find the culprit."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_platform.core.errors import DeadlineError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.job import Answer, Job, NotRowwiseError

Run = Callable[[Tensors, tuple[str, ...], float], Mapping[str, Array]]
"""Run the model on feeds for some outputs, for at most so many seconds, or raise a DeadlineError."""

_PATIENCE = 5.0  # a run is cut short only after so many times the seconds that it should take


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs on their way through one worker.

    `limit` is the most seconds of a run. `runs` counts how often the model was asked; `rowwise` turns False
    when its outputs did not have the rows of its inputs, `too_slow` turns True when the limit ended a run.
    """

    jobs: tuple[Job, ...]
    limit: float = math.inf
    runs: int = 0
    rowwise: bool = True
    too_slow: bool = False

    @property
    def rows(self) -> int:
        return sum(job.rows for job in self.jobs)

    @property
    def deadline(self) -> float:
        """When the last of the callers has been told that it is too late."""
        return max(job.deadline for job in self.jobs)

    def solve(self, run: Run, seconds_per_row: float) -> None:
        """Leave an answer or an error on every job, but where a run is too slow for the limit; raise nothing.

        A batch that fails is halved until the failing job stands alone, so that it spoils no other's answer.
        """
        self._solve(self.jobs, run, seconds_per_row)

    def _solve(self, jobs: Sequence[Job], run: Run, seconds_per_row: float) -> None:
        try:
            self._run_together(jobs, run, seconds_per_row)
        except Exception as error:  # noqa: BLE001 - whatever a foreign model raises belongs to its callers
            if self.too_slow:
                return
            if len(jobs) == 1:
                jobs[0].error = error
                return
            # Rows that cannot be told apart concern every job of the batch: no half will do better.
            size = 1 if isinstance(error, NotRowwiseError) else (len(jobs) + 1) // 2
            for start in range(0, len(jobs), size):
                self._solve(jobs[start : start + size], run, seconds_per_row)

    def _run_together(self, jobs: Sequence[Job], run: Run, seconds_per_row: float) -> None:
        first = jobs[0]
        alone = len(jobs) == 1
        rows = first.rows if alone else sum(job.rows for job in jobs)
        started = time.monotonic()
        timeout = _timeout(jobs, started, rows * seconds_per_row)
        feeds = first.feeds if alone else _join(jobs)
        self.runs += 1
        try:
            outputs = run(feeds, first.outputs, min(timeout, self.limit))
        except DeadlineError:
            self.too_slow = self.limit < timeout
            raise
        seconds = time.monotonic() - started
        if alone and not first.is_part:
            first.answer = Answer(outputs, first.started - first.admitted, seconds, rows)
            return
        if any(array.ndim == 0 or array.shape[0] != rows for array in outputs.values()):
            self.rowwise = False
            raise NotRowwiseError
        start = 0
        for job in jobs:
            stop = start + job.rows
            own = {name: array[start:stop] for name, array in outputs.items()}
            job.answer = Answer(own, job.started - job.admitted, seconds, rows)
            start = stop


def _join(jobs: Sequence[Job]) -> dict[str, Array]:
    return {name: np.concatenate([job.feeds[name] for job in jobs]) for name in jobs[0].feeds}


def _timeout(jobs: Sequence[Job], now: float, expected: float) -> float:
    """The seconds a run may take: all that is left for a lone job, half of it for a batch that can be halved.

    Half, because whoever hangs must be found while its neighbours still have time; and never less than a
    healthy run needs, because cutting those under load would only add to it.
    """
    remaining = [job.deadline - now for job in jobs]
    if max(remaining) <= 0:
        raise DeadlineError("The deadline passed before the model could run.")
    if len(jobs) == 1:
        return remaining[0]
    return min(max(min(remaining) / 2, _PATIENCE * expected), max(remaining))
