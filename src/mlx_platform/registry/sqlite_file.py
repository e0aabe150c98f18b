"""The file of a SQLite registry: opening it, the shape of its tables, and what its errors mean."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.address import locked

WORKSPACE = "default"  # the only one of a registry without tenants
DELETED = "Deleted_Internal"  # the stage of rows that MLflow keeps for their number only


@contextmanager
def open_database(database: Path, *, timeout: float) -> Iterator[sqlite3.Connection]:
    """Open an existing registry in autocommit mode, and turn SQLite's errors into ours.

    Args:
        database: the file, which is never created.
        timeout: seconds to wait for another program's lock.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is a folder.
        UnavailableError: it stayed locked, is no database, or cannot be read or written.
        IntegrityError: it is damaged, or holds values of another type than registries write.
    """
    _require_file(database)
    # Read-write also for readers, so that SQLite may roll back what a killed writer left.
    uri = f"{database.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield connection
    except sqlite3.Error as error:
        raise _explain(error, database) from error
    except (TypeError, ValueError, OverflowError) as error:
        # SQLite columns hold whatever was put there, of any type.
        raise IntegrityError(
            f"The registry {printable(str(database))} holds values that no registry writes."
        ) from error


def no_registry(database: Path) -> NotFoundError:
    """The error of a registry that was not created yet."""
    return NotFoundError(
        f"There is no registry at {printable(str(database))}.", hint="Create one with: mlx init"
    )


def columns_of(connection: sqlite3.Connection, table: str) -> dict[str, bool]:
    """The columns of a table, and whether each is part of its primary key; {} when there is no such table."""
    return {str(row[1]): bool(row[5]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _require_file(database: Path) -> None:
    try:
        if database.is_file():
            return
        folder = database.is_dir()
    except OSError as error:
        raise UnavailableError(
            f"The registry {printable(str(database))} cannot be read: {error.strerror}."
        ) from error
    if folder:
        raise UsageError(
            f"The registry {printable(str(database))} is a folder, and a SQLite file is needed.",
            hint=f"Write for example sqlite:///{printable(str(database / 'mlx.db'))}.",
        )
    raise no_registry(database)


def _explain(error: sqlite3.Error, database: Path) -> MlxError:
    shown = printable(str(database))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return locked(shown)
    if code == sqlite3.SQLITE_CORRUPT:
        return IntegrityError(
            f"The registry {shown} is damaged: {printable(str(error), 200)}.",
            hint="Restore it from a backup.",
        )
    if code == sqlite3.SQLITE_FULL:
        return UnavailableError(
            f"The registry {shown} cannot be written: the disk is full.",
            hint="Nothing was written; make room and try again.",
        )
    doing = "written" if code == sqlite3.SQLITE_READONLY else "read"
    return UnavailableError(f"The registry {shown} cannot be {doing}: {printable(str(error), 200)}.")
