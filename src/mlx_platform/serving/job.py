"""A request in the batcher, and what comes of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.tensors import Array, Tensors


class QueueFullError(UnavailableError):
    """There is no room for the request; `retry_after` is when there will be, in whole seconds."""

    code = "queue_full"

    def __init__(self, retry_after: int) -> None:
        super().__init__("The queue is full.")
        self.retry_after = retry_after


class NotRowwiseError(Exception):
    """The model did not answer with one row for each row, so rows cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's own rows of the outputs; seconds in the queue and in the run, rows of the run it was in."""

    outputs: Mapping[str, Array]
    queue_seconds: float
    run_seconds: float
    batch_rows: int


@dataclass(slots=True, eq=False)
class Job:
    """A request, or a part of one that is longer than a batch.

    `key` says with which others it may share a run (None: with none); `deadline` and `admitted` are on the
    batcher's clock. Its worker leaves an answer or an error, which the event loop hands to `future`.
    """

    feeds: Tensors
    rows: int
    outputs: tuple[str, ...]
    deadline: float
    admitted: float
    future: asyncio.Future[Answer]
    key: tuple[Any, ...] | None
    is_part: bool = False
    queued: bool = True
    started: float = 0.0
    answer: Answer | None = None
    error: BaseException | None = None
    parts: list["Job"] = field(default_factory=list)


def group_key(feeds: Tensors, outputs: tuple[str, ...]) -> tuple[Any, ...]:
    """Two requests with the same key can stand in one run, row under row."""
    return (outputs, *[(name, array.dtype.char, array.shape[1:]) for name, array in feeds.items()])
