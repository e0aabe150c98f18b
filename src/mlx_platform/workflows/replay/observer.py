"""Whoever wants to know of every request that is compared, beside the numbers that are counted of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mlx_platform.core.tensors import Columns
from mlx_platform.evaluation.agreement import ArrayAgreement
from mlx_platform.workflows.replay.requests import Request


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A request whose answer is another one today.

    Attributes:
        request: as it was logged.
        stage: the first whose hashes differ; empty when they do not tell.
        outputs: how each compares; none for a request that cannot be answered any more.
        answers: those computed anew, as far as they are compared; None when there are none.
    """

    request: Request
    stage: str
    outputs: Mapping[str, ArrayAgreement]
    answers: Columns | None


class Observer(Protocol):
    """Told of each request once, in any order."""

    def compared(self, request: Request) -> None:
        """A request was replayed and counted."""

    def mismatch(self, mismatch: Mismatch) -> None:
        """It disagrees; told after `compared`."""
