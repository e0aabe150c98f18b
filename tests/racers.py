"""Processes that do the same thing at the same moment."""

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import MlxError
from mlx_platform.core.settings import load_settings
from mlx_platform.inference.package import open_package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage

RACERS = 8
_PATIENCE = 240


@dataclass(frozen=True)
class Outcome:
    """What one process got in one round: a value, or the exit code of its error."""

    racer: int
    value: Any = None
    code: int = 0
    message: str = ""


Rounds = dict[str, list[Outcome]]


def race(folder: Path) -> Rounds:
    """Run every round with all processes at once, in a folder that has no registry yet."""
    # MLflow's import takes seconds of its own: one process imports it and becomes all the others.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "mlflow.store.tracking.sqlalchemy_store"])
    barrier, queue = context.Barrier(RACERS), context.Queue()
    processes = [
        context.Process(target=_run, args=(racer, folder, barrier, queue), daemon=True)
        for racer in range(RACERS)
    ]
    for process in processes:
        process.start()
    found: Rounds = {}
    for _ in range(RACERS):
        for name, outcome in queue.get(timeout=_PATIENCE):
            found.setdefault(name, []).append(outcome)
    for process in processes:
        process.join(timeout=_PATIENCE)
        assert process.exitcode == 0
    return found


def _run(racer: int, folder: Path, barrier: threading.Barrier, queue: Any) -> None:
    catalog = Catalog(load_settings(start=folder, environment={}))
    mine = open_package(folder / "packages" / f"own-{racer}")
    same = open_package(folder / "packages" / "1")
    seen: dict[str, int] = {}

    def number() -> int:
        return next(version.number for version in catalog.versions("digits") if version.digest == mine.digest)

    def move(expect: int | None, to: int) -> Any:
        event = catalog.move(
            "digits", "production", to, expect=expect, kind="promote", actor=f"racer-{racer}"
        )
        return event.number if event else None

    rounds: dict[str, Callable[[], Any]] = {
        "create": catalog.create,
        "same content": lambda: _registered(catalog, same),
        "own content": lambda: _registered(catalog, mine),
        "first holder": lambda: move(None, number()),
        "second holder": lambda: move(seen["holder"], number()),
        "holder again": lambda: move(seen["holder"], seen["holder"]),
        "other aliases": lambda: _other_alias(catalog, racer, number()),
    }
    outcomes = []
    for name, act in rounds.items():
        if name in {"second holder", "holder again"}:
            seen = catalog.holders("digits")
            seen["holder"] = seen["production"]
        barrier.wait(_PATIENCE)
        outcomes.append((name, _attempt(racer, act)))
        barrier.wait(_PATIENCE)
    queue.put(outcomes)


def _registered(catalog: Catalog, package: Any) -> tuple[int, bool]:
    version, created = catalog.register("digits", package, Lineage())
    return version.number, created


def _other_alias(catalog: Catalog, racer: int, number: int) -> int | None:
    event = catalog.move(
        "digits", f"canary-{racer}", number, expect=None, kind="promote", actor=f"racer-{racer}"
    )
    return event.number if event else None


def _attempt(racer: int, act: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(racer, value=act())
    except MlxError as error:
        return Outcome(racer, code=error.exit_code, message=error.message)
