"""Notices a server that never batches although it could: every run has one row while others wait."""

import logging
from collections.abc import Callable, Iterator

from mlx_platform.serving.metrics import Sample

_RUNS = 200  # in a row; a few of them happen to everybody
_logger = logging.getLogger(__name__)


class Loneliness:
    """Told of every run; speaks up once it cannot be chance any more, until two rows share a run.

    Args:
        reason: says why, when it is asked.
    """

    def __init__(self, reason: Callable[[], str]) -> None:
        self.fault = ""
        """Why every run has one row; empty while that is no fault."""
        self._reason = reason
        self._runs = 0

    def observe(self, rows: int, others: int) -> None:
        """Count a run.

        Args:
            rows: that it had.
            others: requests that waited meanwhile, beside those that run on other workers. With one that
                takes turns with this one, runs of one row are right.
        """
        if rows > 1:
            self._runs, self.fault = 0, ""
        elif others > 1:
            self._runs += 1
            if self._runs == _RUNS:
                self.fault = self._reason()
                _logger.warning("Requests wait for each other, but every run has one row: %s.", self.fault)

    def samples(self) -> Iterator[Sample]:
        """1 while the fault is there."""
        help_text = "1 while every run has one row although other requests wait."
        yield Sample("mlx_batching_fault", help_text, int(bool(self.fault)), kind="gauge")
