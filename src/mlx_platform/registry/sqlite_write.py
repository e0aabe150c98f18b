"""Writing rows into a SQLite registry with nothing but the standard library.

Every row is what MLflow's own store would have written, so its client and its web page go on from it. That
holds for tables whose shape is known to the last column; any other shape is left to MLflow.
"""

import re
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.sqlite_file import DELETED, WORKSPACE, columns_of, open_database

# Every column, and whether it is part of the primary key, but for the workspace: it came with MLflow 3.
_SHAPES = {
    "registered_models": ({"name"}, {"creation_time", "last_updated_time", "description"}),
    "registered_model_tags": ({"key", "name"}, {"value"}),
    "registered_model_aliases": ({"name", "alias"}, {"version"}),
    "model_versions": (
        {"name", "version"},
        {
            *("creation_time", "last_updated_time", "description", "user_id", "current_stage", "source"),
            *("run_id", "status", "status_message", "run_link", "storage_location"),
        },
    ),
    "model_version_tags": ({"key", "name", "version"}, {"value"}),
}
_PROMPT = "mlflow.prompt.is_prompt"
_VERSION_URI = re.compile(r"models:/([^/@]+)/([0-9]{1,18})")
# MLflow's limits, which its store checks before it writes.
_TAG_KEY = re.compile(r"[/\w.\- :]{1,250}")
_TAG_CHARACTERS = 100_000
_SOURCE_CHARACTERS = 500

_Row = Mapping[str, Any]


def sqlite_writer(database: Path, *, timeout: float) -> "SqliteWriter | None":
    """A writer for a registry, None when its tables are not exactly those that are known.

    Raises:
        NotFoundError: there is no such file.
        UnavailableError: it stayed locked, or is no database.
    """
    with open_database(database, timeout=timeout) as connection:
        found = {table: columns_of(connection, table) for table in _SHAPES}
    for workspaces in (True, False):
        keys = {"workspace"} if workspaces else set()
        known = {
            table: dict.fromkeys(key | keys, True) | dict.fromkeys(rest, False)
            for table, (key, rest) in _SHAPES.items()
        }
        if found == known:
            return SqliteWriter(database, timeout=timeout, workspaces=workspaces)
    return None


class SqliteWriter:
    """One transaction a call, in which nobody else writes: what it reads stays true until it is done.

    `synchronous` and the journal mode stay what MLflow leaves them at, SQLite's safe defaults.
    """

    def __init__(self, database: Path, *, timeout: float, workspaces: bool) -> None:
        self._database = database
        self._timeout = timeout
        self._scope = {"workspace": WORKSPACE} if workspaces else {}

    def ensure_model(self, name: str, *, tags: Mapping[str, str], description: str) -> None:
        """Create a registered model unless it is there."""
        _check_tags(tags)
        with open_database(self._database, timeout=self._timeout) as connection:
            if self._find(connection, "registered_models", {"name": name}):
                return  # without waiting for whoever writes
        with self._transaction() as connection:
            if self._find(connection, "registered_models", {"name": name}):
                return
            now = _now()
            model = {
                "name": name,
                "creation_time": now,
                "last_updated_time": now,
                "description": description or None,
            }
            self._insert(connection, "registered_models", model)
            for key, value in tags.items():
                self._insert(connection, "registered_model_tags", {"name": name, "key": key, "value": value})

    def create_version(
        self, name: str, source: str, *, tags: Mapping[str, str], description: str = ""
    ) -> int:
        """Append a version; see `Writer.create_version`.

        Raises:
            NotFoundError: there is no such model, or no version that the source names.
            UsageError: the source names a model and no version of it, or a tag is none of MLflow's.
        """
        _check_tags(tags)
        with self._transaction() as connection:
            self._require_model(connection, name)
            now = _now()
            self._update(connection, "registered_models", {"last_updated_time": now}, {"name": name})
            # Deleted versions count as well: a number is given once.
            query, bound = self._where("SELECT max(version) FROM model_versions", {"name": name})
            number = int(connection.execute(query, bound).fetchone()[0] or 0) + 1
            version = {
                "name": name,
                "version": number,
                "creation_time": now,
                "last_updated_time": now,
                "description": description or None,
                "user_id": None,
                "current_stage": "None",
                "source": source,
                "storage_location": self._storage_of(connection, source),
                "run_id": None,
                "run_link": None,
                "status": "READY",
                "status_message": None,
            }
            self._insert(connection, "model_versions", version)
            for key, value in tags.items():
                tag = {"name": name, "version": number, "key": key, "value": value}
                self._insert(connection, "model_version_tags", tag)
        return number

    def set_alias(self, name: str, alias: str, number: int | None) -> None:
        """Point an alias to a version, or take it away."""
        key = {"name": name, "alias": alias}
        with self._transaction() as connection:
            self._require_model(connection, name)
            if number is None:
                self._delete(connection, "registered_model_aliases", key)
                return
            self._require_version(connection, name, number)
            self._put(connection, "registered_model_aliases", {"version": number}, key)

    def set_tags(self, name: str, number: int, tags: Mapping[str, str]) -> None:
        """Write tags of a version, all or none of them."""
        _check_tags(tags)
        with self._transaction() as connection:
            self._require_model(connection, name)
            self._require_version(connection, name, number)
            for key, value in tags.items():
                tag = {"name": name, "version": number, "key": key}
                self._put(connection, "model_version_tags", {"value": value}, tag)

    def set_model_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Write tags of a registered model, all or none of them."""
        _check_tags(tags)
        with self._transaction() as connection:
            self._require_model(connection, name)
            for key, value in tags.items():
                self._put(connection, "registered_model_tags", {"value": value}, {"name": name, "key": key})

    def delete_model_tags(self, name: str, keys: Collection[str]) -> None:
        """Take tags of a registered model away, all or none of them."""
        with self._transaction() as connection:
            self._require_model(connection, name)
            for key in keys:
                self._delete(connection, "registered_model_tags", {"name": name, "key": key})

    def delete_version(self, name: str, number: int) -> None:
        """Delete a version as MLflow does: aliases go, tags and the number stay, the rest is blanked."""
        with self._transaction() as connection:
            self._require_model(connection, name)
            self._require_version(connection, name, number)
            now = _now()
            key = {"name": name, "version": number}
            self._update(connection, "registered_models", {"last_updated_time": now}, {"name": name})
            self._delete(connection, "registered_model_aliases", key)
            blank = {
                "current_stage": DELETED,
                "last_updated_time": now,
                "description": None,
                "user_id": None,
                "source": "REDACTED-SOURCE-PATH",
                "run_id": "REDACTED-RUN-ID",
                "run_link": "REDACTED-RUN-LINK",
                "status_message": None,
            }
            self._update(connection, "model_versions", blank, key)

    # Within

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with open_database(self._database, timeout=self._timeout) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            # Locked before anything is read: a lock that is taken on the way fails at once and not in time.
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")  # an exception before closes the connection, which rolls back

    def _require_model(self, connection: sqlite3.Connection, name: str) -> None:
        prompt = self._find(connection, "registered_model_tags", {"name": name, "key": _PROMPT})
        hidden = any(str(row["value"]).lower() == "true" for row in prompt)
        if hidden or not self._find(connection, "registered_models", {"name": name}):
            raise NotFoundError(f"There is no model {printable(name)!r} in the registry.")

    def _require_version(self, connection: sqlite3.Connection, name: str, number: int) -> dict[str, Any]:
        found = self._find(connection, "model_versions", {"name": name, "version": number})
        if not found or found[0]["current_stage"] == DELETED:
            raise NotFoundError(f"There is no version {printable(name)}/{number} in the registry.")
        return found[0]

    def _storage_of(self, connection: sqlite3.Connection, source: str) -> str:
        """Where the bytes are that a source names, which MLflow keeps beside it."""
        if len(source) > _SOURCE_CHARACTERS:
            raise UsageError(f"The source of a version has at most {_SOURCE_CHARACTERS} characters.")
        if not source.startswith("models:"):
            return source
        named = _VERSION_URI.fullmatch(source)
        if named is None:
            raise UsageError(f"{printable(source)!r} names no version of a model.")
        version = self._require_version(connection, named[1], int(named[2]))
        return str(version["storage_location"] or version["source"])

    def _find(self, connection: sqlite3.Connection, table: str, key: _Row) -> list[dict[str, Any]]:
        query, bound = self._where(f"SELECT * FROM {table}", key)  # noqa: S608 - constants
        cursor = connection.execute(query, bound)
        names = [str(column[0]) for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _insert(self, connection: sqlite3.Connection, table: str, values: _Row) -> None:
        row = {**values, **self._scope}
        marks = ", ".join("?" * len(row))
        query = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608 - constants
        connection.execute(query, list(row.values()))

    def _update(self, connection: sqlite3.Connection, table: str, values: _Row, key: _Row) -> bool:
        changes = ", ".join(f"{column} = ?" for column in values)
        query, bound = self._where(f"UPDATE {table} SET {changes}", key)  # noqa: S608 - constants
        return connection.execute(query, [*values.values(), *bound]).rowcount > 0

    def _put(self, connection: sqlite3.Connection, table: str, values: _Row, key: _Row) -> None:
        if not self._update(connection, table, values, key):
            self._insert(connection, table, {**key, **values})

    def _delete(self, connection: sqlite3.Connection, table: str, key: _Row) -> None:
        connection.execute(*self._where(f"DELETE FROM {table}", key))  # noqa: S608 - constants

    def _where(self, query: str, key: _Row) -> tuple[str, list[Any]]:
        bound = {**key, **self._scope}
        return f"{query} WHERE {' AND '.join(f'{column} = ?' for column in bound)}", list(bound.values())


def _check_tags(tags: Mapping[str, str]) -> None:
    for key, value in tags.items():
        if not _TAG_KEY.fullmatch(key) or len(value) > _TAG_CHARACTERS:
            raise UsageError(
                f"The tag {printable(key, 80)!r} cannot be kept: a name has letters, digits and "
                f"'/ . - _ :' and up to 250 characters, a value up to {_TAG_CHARACTERS}."
            )


def _now() -> int:
    return int(time.time() * 1000)
