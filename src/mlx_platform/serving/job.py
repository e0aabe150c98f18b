"""A request in the batcher, what comes of it, and the line of those that it may share a run with."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.serving.run_sizes import RunSizes

HIGH, NORMAL, LOW = 0, 1, 2
PRIORITIES = (HIGH, NORMAL, LOW)


class QueueFullError(UnavailableError):
    """There is no room for the request; `retry_after` is when there will be, in whole seconds."""

    code = "queue_full"

    def __init__(self, retry_after: int) -> None:
        super().__init__("The queue is full.")
        self.retry_after = retry_after


class NotRowwiseError(Exception):
    """The model did not answer with one row for each row, so rows cannot be told apart."""


# Not frozen: one is made for each request, which then takes four times as long.
@dataclass(slots=True)
class Answer:
    """A request's own rows of the outputs; seconds in the queue and in the run, rows of the run it was in."""

    outputs: Mapping[str, Array]
    queue_seconds: float
    run_seconds: float
    batch_rows: int


@dataclass(slots=True, eq=False)
class Job:
    """A request, or a part of one that is longer than a batch.

    `group` says with which others it may share a run; `deadline` and `admitted` are on the batcher's clock,
    `cost` is the seconds and `nbytes` the memory that it is expected to take, `length` how long its sequences
    are where others of the group may be longer. Its worker leaves an answer or an error, or neither where it
    should be run again; the event loop hands them to `future`.
    """

    feeds: Tensors
    rows: int
    outputs: tuple[str, ...]
    deadline: float
    admitted: float
    future: asyncio.Future[Answer]
    group: "Group"
    priority: int = NORMAL
    length: int = 0
    nbytes: int = 0
    is_part: bool = False
    queued: bool = False
    cost: float = 0.0
    started: float = 0.0
    answer: Answer | None = None
    error: BaseException | None = None
    parts: list["Job"] = field(default_factory=list)

    def part(self, start: int, stop: int, future: asyncio.Future[Answer]) -> "Job":
        """A job for some of the rows."""
        return Job(
            {name: array[start:stop] for name, array in self.feeds.items()},
            stop - start,
            self.outputs,
            self.deadline,
            self.admitted,
            future,
            self.group,
            priority=self.priority,
            length=self.length,
            nbytes=self.nbytes * (stop - start) // self.rows,
            is_part=True,
        )


class Group:
    """Requests of one kind, a line for each priority, oldest first; and what is known of their runs.

    A job that leaves early keeps its place, empty, until it is the first.

    Attributes:
        rows: of those that still wait.
        cells: numbers in the inputs of one row, at most; 0 where every request has its own.
        row_bytes: memory of the inputs of one row, about; 0 where every request has its own.
        joins: whether they may share a run.
        exclusive: whether nothing else may run meanwhile.
        most_rows: of a run.
        scale: by how much their runs take longer than those that were timed at the start.
        pace: seconds of a row in a full run.
        runs: how many runs that rests on.
        limit: rows of a run that memory was found to be enough for, 0 while it always was.
        limit_until: when to try more again.
        sizes: of runs, and what rows take in them.
    """

    __slots__ = (
        "cells",
        "exclusive",
        "joins",
        "limit",
        "limit_until",
        "lines",
        "most_rows",
        "pace",
        "row_bytes",
        "rows",
        "runs",
        "scale",
        "sizes",
    )

    def __init__(self, *, joins: bool, cells: int = 0, row_bytes: int = 0, exclusive: bool = False) -> None:
        self.lines: tuple[deque[Job], ...] = tuple(deque() for _ in PRIORITIES)
        self.rows = 0
        self.cells = cells
        self.row_bytes = row_bytes
        self.joins = joins
        self.exclusive = exclusive
        self.most_rows = 1
        self.scale = 0.0
        self.pace = 0.0
        self.runs = 0
        self.limit = 0
        self.limit_until = 0.0
        self.sizes = RunSizes()

    def head(self) -> Job | None:
        """The first of the highest priority."""
        for line in self.lines:
            while line:
                if line[0].queued:
                    return line[0]
                line.popleft()
        return None

    def oldest(self) -> float:
        """When the one that has waited longest was admitted."""
        return min(line[0].admitted for line in self.lines if line)


def assembled(whole: Job) -> Answer:
    """The answers of all parts as one."""
    answers = [part.future.result() for part in whole.parts]
    outputs = {
        name: np.concatenate([answer.outputs[name] for answer in answers]) for name in answers[0].outputs
    }
    queued = min(answer.queue_seconds for answer in answers)
    # The parts follow each other on the workers: the rest of the time was spent in or between runs.
    running = time.monotonic() - whole.admitted - queued
    return Answer(outputs, queued, running, max(answer.batch_rows for answer in answers))


def fail(jobs: Iterable[Job], error: BaseException) -> None:
    """Give an error to those who have no answer yet."""
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)


def is_answered(part: Job) -> bool:
    """Whether a part has an answer; one that has failed speaks up by itself, perhaps later in this tick."""
    future = part.future
    return future.done() and not future.cancelled() and future.exception() is None
