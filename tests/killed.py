"""A process that is killed between two of its durable writes, wherever one wants."""

import gc
import multiprocessing
import os
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, Self

import sqlalchemy

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

    def of(self, name: str) -> "Deed":
        return replace(self, name=name)

    def catalog(self) -> Catalog:
        overrides = {"registry.uri": self.uri, "cache.dir": str(self.folder / "cache")}
        return Catalog(load_settings(start=self.folder, environment={}, overrides=overrides))


def register(deed: Deed) -> None:
    """Register a package with numbers, tags and bytes."""
    package = open_package(deed.folder / "packages" / "2")
    deed.catalog().register(deed.model, package, Lineage(params={"lr": "1"}, metrics={"f1": 0.5}))


def move(deed: Deed) -> None:
    """Move production to the second version."""
    deed.catalog().move(deed.model, "production", 2, kind="promote", actor="ada", reason="better")


class Origin:
    """A process that has opened the registry, and of which every victim is a copy: opening it is slow."""

    def __init__(self, opened: Deed) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["preloaded", "racers", "killed"])
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_copy_itself, args=(opened, theirs))

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self._process.join(_PATIENCE)

    def do(self, deed: Deed, *, after: int | None = None) -> bool:
        """Do it in a process of its own; with `after` that process dies when it has written so often.

        Returns:
            Whether it came to its end.
        """
        self._ours.send((deed, after))
        assert self._ours.poll(_PATIENCE)
        code = self._ours.recv()
        assert code in {0, -signal.SIGKILL}
        return bool(code == 0)


def _copy_itself(opened: Deed, orders: Connection) -> None:
    opened.catalog().create()
    while order := orders.recv():
        victim = os.fork()
        if victim == 0:
            _be_victim(*order)
        _, status = os.waitpid(victim, 0)
        orders.send(os.waitstatus_to_exitcode(status))


def _be_victim(deed: Deed, after: int | None) -> NoReturn:
    code = 1
    try:
        # The connections of the process that this is a copy of are not ours to use.
        for engine in [found for found in gc.get_objects() if isinstance(found, sqlalchemy.Engine)]:
            engine.dispose(close=False)
        if after is not None:
            _arm(after)
        deeds: dict[str, Callable[[Deed], None]] = {"register": register, "move": move}
        deeds[deed.name](deed)
        code = 0
    except BaseException:  # noqa: BLE001 - it is said, and the exit code is the answer
        traceback.print_exc()
    finally:
        os._exit(code)


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
