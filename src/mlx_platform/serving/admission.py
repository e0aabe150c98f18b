"""Who is taken into the queue: nobody beyond its bounds, and nobody who could not be answered in time."""

import math
import time
from collections.abc import Iterable

from mlx_platform.serving.batch import Batch
from mlx_platform.serving.batch_policy import BatchPolicy
from mlx_platform.serving.job import QueueFullError
from mlx_platform.serving.waiting import Waiting


class Admission:
    """Guards the queue.

    Args:
        policy: its bounds.
        waiting: who is in it.
        running: the batches that have left it and are not done.
    """

    def __init__(self, policy: BatchPolicy, waiting: Waiting, running: Iterable[Batch]) -> None:
        self._policy = policy
        self._waiting = waiting
        self._running = running

    def check(self, rows: int, nbytes: int, patience: float) -> None:
        """See whether there is room for a request, when others wait.

        What is longer than the whole queue is taken when nobody waits; it never would be otherwise.

        Args:
            rows: of the request.
            nbytes: of its inputs.
            patience: seconds until its deadline, or infinity for those who pass the queue.

        Raises:
            QueueFullError: there is none, or it could not be answered in time.
        """
        waiting, policy = self._waiting, self._policy
        full = waiting.rows + rows > policy.max_queue_rows or waiting.nbytes + nbytes > policy.max_queue_bytes
        # Nobody is refused by a guess who would be in the next batch.
        if full or (waiting.rows >= policy.max_rows and self._expected_wait() > patience):
            raise QueueFullError(max(1, math.ceil(self._expected_wait())))

    def _expected_wait(self) -> float:
        """Seconds until what waits and runs now is done."""
        now = time.monotonic()
        seconds = self._waiting.seconds
        for batch in self._running:
            seconds += max(0.0, batch.started + batch.expected - now)
        spread = any(batch.expected >= self._policy.beside_seconds for batch in self._running)
        return seconds / (self._policy.workers if spread else 1)
