"""The threads that solve batches, each replaced by another when it does not come back from a run."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from mlx_platform.serving.batch import Batch, Run

_MOST_LOST = 3  # threads that may be lost in runs at a time, each with its share of memory and cores


class Workers:
    """Threads that take batches from one line.

    Args:
        count: how many.
        run: the model.
        done: told on the event loop of every batch that was solved.

    Attributes:
        lost: threads that are in a run which does not end.
    """

    def __init__(self, count: int, run: Run, done: Callable[[Batch], None]) -> None:
        self.lost = 0
        self._run = run
        self._done = done
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._line: SimpleQueue[Batch | None] = SimpleQueue()
        self._started = False

    def put(self, batch: Batch) -> None:
        """Have a batch solved."""
        if not self._started:
            self._started = True
            for _ in range(self._count):
                self._start()
        self._line.put(batch)

    def replace(self, batch: Batch) -> bool:
        """Give up the worker of a batch for another one; False when too many are lost already."""
        if self.lost >= _MOST_LOST:
            return False
        self.lost += 1
        batch.lose()
        self._start()
        return True

    def close(self) -> None:
        """Let the threads end when the line is empty."""
        for _ in range(self._count if self._started else 0):
            self._line.put(None)

    def _start(self) -> None:
        # Daemons: a run that hangs inside of the runtime must not keep the process from ending.
        threading.Thread(target=self._work, name="mlx-batch", daemon=True).start()

    def _work(self) -> None:
        while (batch := self._line.get()) is not None:
            still_ours = batch.solve_on_thread(self._run)
            try:
                self._loop.call_soon_threadsafe(self._done if still_ours else self._found, batch)
            except RuntimeError:
                return  # the loop is closed: the server has ended without this run
            if not still_ours:
                return

    def _found(self, _batch: Batch) -> None:
        self.lost -= 1
