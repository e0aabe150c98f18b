"""How long work tells a watcher how far it is, without knowing whether there is a terminal."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    def stage(self, name: str, total: int | None = None) -> AbstractContextManager[Advance]:
        """Open a stage of `total` units (unknown when None); call what it yields with the units done."""
        ...


class Silent:
    """The progress of a process that nobody watches."""

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:  # noqa: ARG002 - nothing is drawn
        yield lambda _units: None
