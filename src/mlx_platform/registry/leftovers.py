"""What interrupted commands left behind: packages that never became a version, and private folders."""

import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.text import printable
from mlx_platform.registry.sqlite_file import columns_of, open_database
from mlx_platform.registry.version import DIGEST

OLD = timedelta(days=1)
"""Nothing that anybody still works on is older than this."""

_OURS = re.compile(r"mlx-(?:[a-z]+-)?[a-z0-9_]{8}")
"""What `tempfile` makes for a command: a prefix of ours, and eight characters of its own."""
_PROCESSES = Path("/proc")
_UNFINISHED = (
    "SELECT m.model_id FROM logged_models m "
    "JOIN logged_model_tags t ON t.model_id = m.model_id AND t.tag_key = ? "
    "WHERE m.creation_timestamp_ms < ? AND m.lifecycle_stage = 'active' AND NOT EXISTS ("
    "SELECT 1 FROM model_versions v WHERE v.source = 'models:/' || m.model_id "
    "OR v.storage_location = m.artifact_location) ORDER BY m.model_id"
)


def unfinished(database: Path, *, timeout: float, now: datetime) -> tuple[str, ...]:
    """Models that a registration uploaded into a SQLite registry, and that no version was made of.

    Args:
        database: the registry's file.
        timeout: seconds to wait for another program's lock.
        now: what is younger than a day may still become a version.
    """
    before = int((now - OLD).timestamp() * 1000)
    with open_database(database, timeout=timeout) as connection:
        connection.execute("PRAGMA query_only = ON")
        if not _known(connection):
            return ()
        return tuple(str(model) for (model,) in connection.execute(_UNFINISHED, (DIGEST, before)))


def _known(connection: sqlite3.Connection) -> bool:
    needed = {"logged_models": "lifecycle_stage", "logged_model_tags": "tag_key"}
    return all(column in columns_of(connection, table) for table, column in needed.items())


def stale_folders(places: Sequence[Path], now: datetime) -> tuple[Path, ...]:
    """Private folders of commands that died: old, of this user, and open in no process.

    Args:
        places: where caches make theirs; the folder for temporary files is looked into as well.
        now: the time.
    """
    temporary = _matching(Path(tempfile.gettempdir()), "mlx-*")
    candidates = [
        *(folder for folder in temporary if _OURS.fullmatch(folder.name)),
        *(folder for place in places for folder in _matching(place, ".new-*")),
    ]
    old = [folder for folder in candidates if _is_old(folder, now)]
    return tuple(folder for folder in old if not _in_use(folder)) if old else ()


def remove_folder(folder: Path) -> None:
    """Remove a private folder; one that is gone already is as good.

    Raises:
        UnavailableError: it cannot be removed.
    """
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass  # another repair was faster
    except OSError as error:
        raise UnavailableError(
            f"{printable(str(folder), 300)} cannot be removed: {error.strerror}."
        ) from error


def _matching(place: Path, pattern: str) -> list[Path]:
    try:
        return sorted(place.glob(pattern))
    except OSError:
        return []


def _is_old(folder: Path, now: datetime) -> bool:
    try:
        state = folder.lstat()
    except OSError:
        return False
    # Nobody but `tempfile` makes folders for one user alone; `mlx-datasets` may be somebody's work.
    private = stat.S_ISDIR(state.st_mode) and stat.S_IMODE(state.st_mode) == 0o700
    return private and state.st_uid == os.getuid() and state.st_mtime < (now - OLD).timestamp()


def _in_use(folder: Path) -> bool:
    """Whether a process of this user works in it; yes where that cannot be told."""
    if not (_PROCESSES / "self").exists():
        return True
    inside = f"{folder}/"
    return any(f"{path}/".startswith(inside) for path in _open_paths())


def _open_paths() -> Iterator[str]:
    for process in _PROCESSES.glob("[0-9]*"):
        # A process of somebody else, or one that has ended meanwhile, cannot be asked.
        with suppress(OSError):
            yield from _targets([process / "cwd", *(process / "fd").iterdir()])
            with (process / "maps").open(errors="replace") as lines:
                yield from (line[start:].rstrip("\n") for line in lines if (start := line.find("/")) > 0)


def _targets(links: Iterable[Path]) -> Iterator[str]:
    for link in links:
        with suppress(OSError):
            yield str(link.readlink())
