"""Marks on the disk by which a process that died with a candidate loaded is found by the ones after it.

A mark is a file that its process holds locked while the candidate is loaded, and takes away when it lets go
of it. A mark that nobody holds is of a process that ended without having been asked. Processes that died
beside each other, as in a power cut, count as one death; those that died one after the other count one by
one: a candidate that ends whatever loads it must not be loaded for ever.
"""

import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_logger = logging.getLogger(__name__)
_NO_PART = re.compile(r"[^A-Za-z0-9-]")


class Marks:
    """The marks of all processes that share a folder.

    Args:
        folder: on this machine's disk; made when it is needed.
        owner: names this process.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._owner = _NO_PART.sub("_", owner)
        self._held: tuple[Path, int] | None = None

    def set(self, rollout: str, step: int) -> None:
        """Say that this process has the candidate of a step loaded; a mark of another step goes away."""
        path = self._of(rollout, step) / self._owner
        if self._held is not None and self._held[0] == path:
            return
        self.clear()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            staged = path.parent / f".{self._owner}"
            descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, str(time.time_ns()).encode())
            staged.rename(path)  # locked before anybody can see it
        except OSError as error:
            _logger.warning("Cannot mark the disk that a candidate is loaded: %s.", error.strerror)
            return
        self._held = (path, descriptor)
        self.touch()

    def keep(self, held: tuple[str, int] | None, over: Iterable[str] = ()) -> None:
        """Say which candidate this process has loaded, of a rollout and its step, and that it is still there.

        Args:
            held: None where it has none.
            over: rollouts of which nothing is to be left.
        """
        for rollout in over:
            self.forget(rollout)
        if held is None:
            self.clear()
        else:
            self.set(*held)
            self.touch()

    def touch(self) -> None:
        """Say that this process is still there."""
        if self._held is not None:
            with suppress(OSError):
                moment = time.time_ns()  # not the file system's own clock, which is behind
                os.utime(self._held[1], ns=(moment, moment))

    def clear(self) -> None:
        """Say that this process has let go of the candidate, or goes away as it should."""
        if self._held is not None:
            path, descriptor = self._held
            self._held = None
            with suppress(OSError):
                path.unlink()
            os.close(descriptor)

    def deaths(self, rollout: str, step: int) -> int:
        """How many processes died one after the other with the candidate of a step loaded."""
        lives = sorted(self._lives(self._of(rollout, step)), key=lambda life: life[1])
        count, ended = 0, -1
        for began, last in lives:
            if began > ended:
                count, ended = count + 1, last
        return count

    def died(self, rollout: str, step: int, owner: str) -> bool:
        """Whether a process of this machine died with the candidate of a step loaded."""
        with suppress(OSError):
            return _life(self._of(rollout, step) / _NO_PART.sub("_", owner)) is not None
        return False

    def forget(self, rollout: str) -> None:
        """Take away what is left of a rollout that is over."""
        self.clear()
        for folder in self._folder.glob(f"{_NO_PART.sub('_', rollout)}.*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _of(self, rollout: str, step: int) -> Path:
        return self._folder / f"{_NO_PART.sub('_', rollout)}.{step}"

    def _lives(self, folder: Path) -> list[tuple[int, int]]:
        """From when to when each process was there that is not any more, in nanoseconds."""
        found = []
        with suppress(OSError):
            for path in folder.iterdir():
                if path.name.startswith("."):
                    continue
                with suppress(OSError):
                    life = _life(path)
                    if life is not None:
                        found.append(life)
        return found


def _life(path: Path) -> tuple[int, int] | None:
    """The first and the last moment of a mark that nobody holds; None for one that is held."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others may look at the same moment
        began = os.read(descriptor, 32)
        last = os.fstat(descriptor).st_mtime_ns
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)
    return (int(began) if began.isdigit() else last), last
