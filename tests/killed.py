"""A process that is killed between two of its durable writes, wherever one wants."""

import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.settings import load_settings
from mlx_platform.inference.package import open_package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage

# What Python says before it happens; SQLite says its commits itself.
_DURABLE = {"os.rename", "os.link", "shutil.copyfile", "http.client.send"}
_PATIENCE = 120


@dataclass(frozen=True)
class Deed:
    """Something to do to a model: the name of a function below, and where."""

    name: str
    model: str
    folder: Path
    uri: str

    def catalog(self) -> Catalog:
        overrides = {"registry.uri": self.uri, "cache.dir": str(self.folder / "cache")}
        return Catalog(load_settings(start=self.folder, environment={}, overrides=overrides))


def register(deed: Deed) -> None:
    """Register a package with numbers, tags and bytes."""
    package = open_package(deed.folder / "packages" / "2")
    deed.catalog().register(deed.model, package, Lineage(params={"lr": "1"}, metrics={"f1": 0.5}))


def move(deed: Deed) -> None:
    """Move production on to the next version."""
    catalog = deed.catalog()
    before = catalog.holders(deed.model).get("production") or 0
    catalog.move(deed.model, "production", before + 1, kind="promote", actor="ada", reason="better")


def do(deed: Deed, *, after: int | None = None) -> bool:
    """Do it in a process of its own; with `after` that process dies when it has written so often.

    Returns:
        Whether it came to its end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded", "racers", "killed"])
    process = context.Process(target=_do, args=(deed, after))
    process.start()
    process.join(_PATIENCE)
    assert process.exitcode in {0, -signal.SIGKILL}
    return process.exitcode == 0


def _do(deed: Deed, after: int | None) -> None:
    if after is not None:
        _arm(after)
    deeds: dict[str, Callable[[Deed], None]] = {"register": register, "move": move}
    deeds[deed.name](deed)


def _arm(writes: int) -> None:
    left = writes

    def before_write() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def audit(event: str, _: tuple[Any, ...]) -> None:
        if event in _DURABLE:
            before_write()

    def trace(statement: str) -> None:
        if statement.lstrip().upper().startswith("COMMIT"):
            before_write()

    connect = sqlite3.connect

    def connect_traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = sqlite3.dbapi2.connect = connect_traced  # type: ignore[assignment]
    sys.addaudithook(audit)
