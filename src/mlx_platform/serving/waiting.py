"""The jobs that wait for a run, in groups that may share one."""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlx_platform.serving.job import Job


@dataclass(slots=True)
class _Group:
    """Jobs of one key, oldest first; `rows` counts those that still wait."""

    jobs: deque[Job] = field(default_factory=deque)
    rows: int = 0


class Waiting:
    """A line per group. A job that leaves early keeps its place, empty, until a batch is formed."""

    def __init__(self) -> None:
        self.rows = 0
        self._groups: dict[object, _Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[Job]:
        """The jobs that still wait."""
        return (job for group in self._groups.values() for job in group.jobs if job.queued)

    def add(self, job: Job) -> None:
        group = self._groups.setdefault(_key(job), _Group())
        group.jobs.append(job)
        group.rows += job.rows
        self.rows += job.rows

    def remove(self, job: Job) -> bool:
        """Take a job out of the line, and let go of its arrays; False when it had left before."""
        if not job.queued:
            return False
        self._leave(job, self._groups[_key(job)])
        job.feeds = {}
        return True

    def clear(self) -> list[Job]:
        """Empty every line."""
        jobs = list(self)
        for job in jobs:
            job.queued = False
        self._groups.clear()
        self.rows = 0
        return jobs

    def next_group(self, max_rows: int, admitted_before: float) -> tuple[object, float]:
        """The key of the group to run now, None when all may wait; and when the oldest of those was admitted.

        A group may go when it fills a batch or when its head was admitted early enough; among several the
        one with the oldest head does.
        """
        best, best_admitted, oldest = None, math.inf, math.inf
        for key, group in self._groups.items():
            admitted = group.jobs[0].admitted
            if admitted > admitted_before and group.rows < max_rows:
                oldest = min(oldest, admitted)
            elif admitted < best_admitted:
                best, best_admitted = key, admitted
        return best, oldest

    def take(self, key: object, max_rows: int) -> list[Job]:
        """The oldest jobs of a group that fit into one run; one that is longer than a run goes alone."""
        group = self._groups[key]
        jobs: list[Job] = []
        rows = 0
        while group.jobs and (not jobs or rows + group.jobs[0].rows <= max_rows):
            job = group.jobs.popleft()
            if job.queued:
                self._leave(job, group)
                rows += job.rows
                jobs.append(job)
        if not group.jobs:
            del self._groups[key]
        return jobs

    def _leave(self, job: Job, group: _Group) -> None:
        job.queued = False
        group.rows -= job.rows
        self.rows -= job.rows


def _key(job: Job) -> object:
    return job if job.key is None else job.key
