"""Reading a SQLite registry with nothing but the standard library.

Importing MLflow takes two seconds; these queries take milliseconds. The tables are MLflow's: their shape is
checked first, and a shape that is not known is left to MLflow's own client.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_platform.registry.row import Row
from mlx_platform.registry.sight import Glance
from mlx_platform.registry.sqlite_file import DELETED, WORKSPACE, columns_of, no_registry, open_database

_NEEDED = {
    "registered_models": {"name"},
    "registered_model_tags": {"name", "key", "value"},
    "registered_model_aliases": {"name", "alias", "version"},
    "model_versions": {
        "name",
        "version",
        "creation_time",
        "current_stage",
        "source",
        "storage_location",
        "run_id",
        "status",
        "description",
    },
    "model_version_tags": {"name", "version", "key", "value"},
}
# Deleted versions stay in the table; versions that are not ready have no complete bytes.
_VISIBLE = f"v.current_stage IS NOT '{DELETED}' AND (v.status IS NULL OR v.status = 'READY')"
_BATCH = 500  # bound parameters in one statement


class SqliteReader:
    """Opens the file anew for each call: a reader must not hold locks, and threads share nothing."""

    def __init__(self, database: Path, *, timeout: float) -> None:
        self._database = database
        self._timeout = timeout
        self._workspaces: bool | None = None

    def understands(self) -> bool:
        """Whether every table has the columns that the queries use.

        Raises:
            NotFoundError: there is no such file, or nothing in it.
            UnavailableError: it stayed locked, or is no database.
        """
        with self._connect() as connection:
            shapes = {table: columns_of(connection, table) for table in _NEEDED}
            if not any(shapes.values()) and not columns_of(connection, "alembic_version"):
                raise no_registry(self._database)
        # The workspace column came later: all tables have it, or none does.
        workspaces = {"workspace" in columns for columns in shapes.values()}
        return len(workspaces) == 1 and all(
            columns.keys() >= _NEEDED[table] for table, columns in shapes.items()
        )

    def names(self) -> tuple[str, ...]:
        """Every registered model by name, also those of the journal; prompts are left out."""
        with self._connect() as connection:
            where = self._in_workspace(connection, "m")
            rows = connection.execute(
                f"SELECT m.name FROM registered_models m WHERE {where} AND NOT EXISTS "  # noqa: S608 - constants
                "(SELECT 1 FROM registered_model_tags t WHERE t.name = m.name "
                "AND t.key = 'mlflow.prompt.is_prompt' AND lower(t.value) = 'true') ORDER BY m.name"
            )
            return tuple(str(name) for (name,) in rows)

    def count(self, name: str) -> int:
        """How many versions a model has."""
        with self._connect() as connection:
            where = self._in_workspace(connection, "v")
            query = f"SELECT count(*) FROM model_versions v WHERE v.name = ? AND {where} AND {_VISIBLE}"  # noqa: S608 - constants
            return int(connection.execute(query, (name,)).fetchone()[0])

    def rows(
        self,
        name: str,
        *,
        numbers: Sequence[int] | None = None,
        limit: int | None = None,
        keys: Sequence[str] | None = None,
    ) -> tuple[Row, ...]:
        """A model's versions with their tags, newest first: all, the given ones, or the last `limit`."""
        with self._connect() as connection:
            connection.execute("BEGIN")  # one snapshot: versions and tags belong together
            where = self._in_workspace(connection, "v")
            query = (
                "SELECT v.version, v.creation_time, v.source, v.run_id, v.description, v.current_stage "  # noqa: S608 - constants
                f"FROM model_versions v WHERE v.name = ? AND {where} AND {_VISIBLE}"
            )
            bound: list[Any] = [name]
            if numbers is not None:
                query += f" AND v.version IN ({_marks(numbers)})"
                bound += numbers
            query += " ORDER BY v.version DESC LIMIT ?"
            bound.append(-1 if limit is None else limit)
            found = connection.execute(query, bound).fetchall()
            wanted = None if numbers is None and limit is None else [int(row[0]) for row in found]
            tags = self._tags(connection, name, wanted, keys)
            return tuple(
                Row(
                    name=name,
                    number=int(number),
                    created_ms=int(created or 0),
                    source=_text(source),
                    run_id=_text(run),
                    description=_text(description),
                    tags=tags.get(number, {}),
                    stage=_text(stage),
                )
                for number, created, source, run, description, stage in found
            )

    def tagged(self, name: str, key: str, value: str) -> tuple[int, ...]:
        """The versions of a model that have a tag of exactly this value, newest first."""
        with self._connect() as connection:
            where = f"{self._in_workspace(connection, 't')} AND {self._in_workspace(connection, 'v')}"
            query = (
                "SELECT v.version FROM model_version_tags t JOIN model_versions v "  # noqa: S608 - constants
                f"ON v.name = t.name AND v.version = t.version WHERE t.name = ? AND {where} AND {_VISIBLE} "
                "AND t.key = ? AND t.value = ? ORDER BY v.version DESC"
            )
            return tuple(int(number) for (number,) in connection.execute(query, (name, key, value)))

    def aliases(self, name: str) -> dict[str, int]:
        """Who holds which alias, as MLflow has it."""
        with self._connect() as connection:
            return self._aliases(connection, name)

    def model_tags(self, name: str) -> dict[str, str]:
        """The tags of a registered model, not of its versions."""
        with self._connect() as connection:
            return self._model_tags(connection, name)

    def glance(self, name: str, journal: str) -> Glance:
        """Aliases, tags and the end of the journal, all of one moment."""
        with self._connect() as connection:
            connection.execute("BEGIN")
            where = self._in_workspace(connection, "v")
            query = f"SELECT max(v.version) FROM model_versions v WHERE v.name = ? AND {where} AND {_VISIBLE}"  # noqa: S608 - constants
            end = connection.execute(query, (journal,)).fetchone()[0]
            return Glance(self._aliases(connection, name), self._model_tags(connection, name), int(end or 0))

    def location(self, name: str, number: int) -> str:
        """Where the bytes of a version are said to be; untrusted."""
        with self._connect() as connection:
            where = self._in_workspace(connection, "v")
            query = (
                "SELECT coalesce(v.storage_location, v.source) FROM model_versions v "  # noqa: S608 - constants
                f"WHERE v.name = ? AND v.version = ? AND {where} AND {_VISIBLE}"
            )
            row = connection.execute(query, (name, number)).fetchone()
        return str(row[0] or "") if row else ""

    def _aliases(self, connection: sqlite3.Connection, name: str) -> dict[str, int]:
        where = self._in_workspace(connection, "a")
        query = f"SELECT a.alias, a.version FROM registered_model_aliases a WHERE a.name = ? AND {where}"  # noqa: S608 - constants
        return {str(alias): int(number) for alias, number in connection.execute(query, (name,))}

    def _model_tags(self, connection: sqlite3.Connection, name: str) -> dict[str, str]:
        where = self._in_workspace(connection, "t")
        query = f"SELECT t.key, t.value FROM registered_model_tags t WHERE t.name = ? AND {where}"  # noqa: S608 - constants
        return {str(key): _text(value) for key, value in connection.execute(query, (name,))}

    def _tags(
        self,
        connection: sqlite3.Connection,
        name: str,
        numbers: Sequence[int] | None,
        keys: Sequence[str] | None,
    ) -> dict[int, dict[str, str]]:
        where = self._in_workspace(connection, "t")
        query = f"SELECT t.version, t.key, t.value FROM model_version_tags t WHERE t.name = ? AND {where}"  # noqa: S608 - constants
        bound = [name]
        if keys is not None:
            query += f" AND t.key IN ({_marks(keys)})"
            bound += keys
        tags: dict[int, dict[str, str]] = {}
        if numbers is None:
            found = connection.execute(query, bound).fetchall()
        else:
            found = []
            for start in range(0, len(numbers), _BATCH):
                part = numbers[start : start + _BATCH]
                found += connection.execute(
                    f"{query} AND t.version IN ({_marks(part)})", (*bound, *part)
                ).fetchall()
        for number, key, value in found:
            tags.setdefault(int(number), {})[str(key)] = _text(value)
        return tags

    def _in_workspace(self, connection: sqlite3.Connection, alias: str) -> str:
        if self._workspaces is None:
            self._workspaces = "workspace" in columns_of(connection, "model_versions")
        return f"{alias}.workspace = '{WORKSPACE}'" if self._workspaces else "1"

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with open_database(self._database, timeout=self._timeout) as connection:
            connection.execute("PRAGMA query_only = ON")
            yield connection


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
