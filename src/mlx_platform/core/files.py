"""Files that appear whole or not at all, and a lock that dies with its holder."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.core.text import printable

_NEW, _OLD = "new", "old"


def exists(path: str) -> bool:
    """Whether there is such a file or folder; what no file can be called does not exist."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def write_atomic(path: Path, content: bytes | str, *, mode: int = 0o644) -> None:
    """Write beside the target, flush to disk, then rename: a reader never sees half a file.

    Raises:
        UsageError: the folder cannot be written or the disk is full.
    """
    with staged(path, content, mode=mode):
        pass


@contextmanager
def staged(path: Path, content: bytes | str, *, mode: int = 0o644) -> Iterator[None]:
    """Write beside the target and flush to disk at once; rename only when the body has succeeded.

    Raises:
        UsageError: the folder cannot be written or the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary: str | None = None
    try:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
        yield
        with _writing(path):
            Path(temporary).replace(path)
        temporary = None
    finally:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from error


@contextmanager
def file_lock(path: Path, *, timeout: float, purpose: str, holder: str = "") -> Iterator[None]:
    """Hold an exclusive advisory lock; the kernel releases it when the process dies.

    Args:
        path: of the file that is locked.
        timeout: seconds to wait for another holder.
        purpose: what is done under the lock, as in "is still writing".
        holder: who holds it, for those who are refused; it stands in the file.

    Raises:
        UnavailableError: another process held it for `timeout` seconds, or the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UnavailableError(f"Cannot create the lock {path}: {error.strerror}.") from error
    deadline = time.monotonic() + timeout
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    known = printable(os.pread(handle, 400, 0).decode("utf-8", "replace"), 400)
                    raise UnavailableError(
                        f"Another process is still {purpose}{f' after {timeout:g} s' if timeout else ''}"
                        f"{f': {known}' if known else ''}.",
                        hint="Try again in a moment.",
                    ) from None
                time.sleep(0.02)
        if holder:
            with suppress(OSError):  # a full disk keeps nobody from working
                os.ftruncate(handle, 0)
                os.pwrite(handle, holder.encode(), 0)
        yield
    finally:
        os.close(handle)


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Fill a new folder beside the target; when the body has succeeded it takes the target's place.

    Whoever is killed on the way leaves a folder whose name begins with a dot: see `recover_folders`.

    Raises:
        UsageError: the folder cannot be written.
    """
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    made, old = temporary / _NEW, temporary / _OLD
    try:
        with _writing(target):
            made.mkdir(mode=0o755)
        yield made
        with _writing(target):
            if target.exists():
                target.rename(old)
            try:
                made.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def recover_folders(parent: Path) -> None:
    """Take away what killed writers left of `staged_folder`, and put back what they had moved aside.

    Only for who keeps all other writers away.
    """
    for temporary in parent.glob(".*.*"):
        target = parent / temporary.name[1:].rpartition(".")[0]
        old = temporary / _OLD
        with suppress(OSError):
            if old.is_dir() and not target.exists():
                old.rename(target)
            shutil.rmtree(temporary)
