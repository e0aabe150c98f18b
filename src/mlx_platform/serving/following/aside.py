"""Work that may take as long as it likes, on a thread that nobody waits for at the end."""

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from mlx_platform.core.errors import UnavailableError

_Made = TypeVar("_Made")
_NICENESS = 15
_TURN_SECONDS = 0.0005


class StillBusyError(UnavailableError):
    """What was asked before has not come to an end yet."""

    code = "still_busy"


class Aside:
    """One thread for one thing after the other. It ends with the process, whatever it is in the middle of.

    Args:
        name: of the thread.
        gentle: whether it leaves the cores to others that want them. Threads that its work starts do too.
    """

    def __init__(self, name: str, *, gentle: bool = False) -> None:
        self._name = name
        self._gentle = gentle
        self._busy = False
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def do(self, work: Callable[[], _Made], patience: float) -> _Made:
        """What `work` returns; it goes on where nobody waits any more, and nothing else is done meanwhile.

        Args:
            work: called on the thread.
            patience: seconds to wait.

        Raises:
            StillBusyError: it, or what was asked before it, takes longer than anybody waits.
        """
        if self._busy:
            raise StillBusyError("What was asked before has not come to an end yet.")
        self._busy = True
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Made] = loop.create_future()
        self._work.put(lambda: self._run(work, loop, future))
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(patience):
                return await future
        except TimeoutError as error:
            raise StillBusyError(f"There was no answer within {patience:g} s.") from error

    def close(self) -> None:
        """Let the thread end once it comes back from what it does."""
        self._work.put(None)

    def _serve(self) -> None:
        if self._gentle and sys.platform == "linux":  # elsewhere threads have no niceness of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (work := self._work.get()) is not None:
            work()

    def _run(
        self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]"
    ) -> None:
        made: Any = None
        error: BaseException | None = None
        try:
            made = work()
        except BaseException as caught:  # noqa: BLE001 - it is raised where somebody waits
            error = caught
        with suppress(RuntimeError):  # the loop has ended before the work has
            loop.call_soon_threadsafe(self._conclude, future, made, error)

    def _conclude(self, future: "asyncio.Future[Any]", made: Any, error: BaseException | None) -> None:
        self._busy = False
        if future.done():
            return
        if error is None:
            future.set_result(made)
        else:
            future.set_exception(error)


@contextmanager
def short_turns() -> Iterator[None]:
    """Have threads pass the interpreter on sooner while one of them works beside the event loop.

    Python lets a thread have it for 5 ms at a time, which every step of a request would have to wait for.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
