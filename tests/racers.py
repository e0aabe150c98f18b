"""Processes that do the same thing at the same moment."""

import multiprocessing
import resource
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import MlxError
from mlx_platform.core.settings import load_settings
from mlx_platform.inference.package import Package, open_package
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import CONTENT, DIGEST, Lineage

RACERS = 8
MODELS = ("a", "b", "c", "d")  # journals stay short when rounds are spread over some
TARGETS = 3  # versions that the moves go between
_PATIENCE = 800  # seconds for all rounds, on a machine that does other things as well


@dataclass(frozen=True)
class Outcome:
    """What one process got in one round: a value, or the exit code of its error."""

    racer: int
    value: Any = None
    code: int = 0
    message: str = ""


Rounds = list[tuple[str, list[Outcome]]]


@dataclass(frozen=True)
class Course:
    """Where they race.

    Attributes:
        folder: of the project, with `packages/1` and one of each racer's own when they register.
        uri: the registry.
        by_mlflow: how many of them write through MLflow's client although there is something faster.
    """

    folder: Path
    uri: str
    by_mlflow: int = 0

    def catalog(self, racer: int = RACERS) -> Catalog:
        overrides = {"registry.uri": self.uri, "registry.timeout": 60}
        catalog = Catalog(load_settings(start=self.folder, environment={}, overrides=overrides))
        if racer < self.by_mlflow:
            catalog._backend.__dict__["writer"] = catalog._backend.store
        return catalog


@dataclass
class Racer:
    """One process, and what it saw before each start: the alias's holder, or the journal's last event."""

    number: int
    course: Course
    catalog: Catalog
    model: str = "digits"
    holder: int | None = None

    def create(self) -> bool:
        return self.catalog.create()

    def same_content(self) -> tuple[int, bool]:
        return self._register("1")

    def own_content(self) -> tuple[int, bool]:
        return self._register(f"own-{self.number}")

    def move(self) -> int | None:
        """From where all see the alias to one of the two other places, so that it often comes back."""
        here = self.holder or 0
        to = (here + self.number % 2) % TARGETS + 1
        return self._moved("production", to, self.holder)

    def swing(self) -> int | None:
        """Half of them from here to there, the others back from there: it may be here several times."""
        here = self.holder or 1
        there = here % TARGETS + 1
        expect, to = (here, there) if self.number % 2 else (there, here)
        return self._moved("production", to, expect)

    def stay(self) -> int | None:
        return self._moved("production", self.holder or 1, self.holder)

    def transit(self) -> int | None:
        """One step of a rollout, by whoever saw the journal end where all of them did."""
        event = self.catalog.transition(
            self.model,
            {"id": "race", "state": "STEP", "step": self.number},
            candidate=self.catalog.resolve(f"{self.model}/2"),
            after=self.holder or 0,
            actor=f"racer-{self.number}",
        )
        return event.number

    def other_alias(self) -> int | None:
        return self._moved(f"canary-{self.number}", 1, None)

    def _register(self, package: str) -> tuple[int, bool]:
        version, created = self.catalog.register(self.model, self._package(package), Lineage())
        return version.number, created

    def _package(self, name: str) -> Package:
        return open_package(self.course.folder / "packages" / name)

    def _moved(self, alias: str, to: int, expect: int | None) -> int | None:
        event = self.catalog.move(
            self.model, alias, to, expect=expect, kind="promote", actor=f"racer-{self.number}"
        )
        return event.number if event else None


@dataclass
class Result:
    """What came of a race."""

    course: Course
    rounds: Rounds = field(default_factory=list)
    cpu_seconds: float = 0.0

    def named(self, name: str) -> list[list[Outcome]]:
        return [outcomes for round_name, outcomes in self.rounds if round_name == name]

    def winners(self, name: str) -> list[list[int]]:
        """The events of those who moved something, for each round of this name."""
        return [
            [outcome.value for outcome in outcomes if outcome.code == 0 and outcome.value is not None]
            for outcomes in self.named(name)
        ]


def race(course: Course, rounds: Sequence[str]) -> Result:
    """Run rounds with all processes starting each at once.

    Args:
        course: where.
        rounds: `METHOD` of `Racer`, or `METHOD MODEL` for one whose alias they look at before they start.
    """
    # MLflow's import takes seconds of its own: one process imports it and becomes all the others.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded", "racers"])
    barrier, queue, holder = context.Barrier(RACERS), context.Queue(), context.Value("i", 0)
    processes = [
        context.Process(target=_run, args=(racer, course, tuple(rounds), barrier, queue, holder), daemon=True)
        for racer in range(RACERS)
    ]
    for process in processes:
        process.start()
    result = Result(course, [(name, []) for name in rounds])
    for _ in range(RACERS):
        outcomes, cpu_seconds = queue.get(timeout=_PATIENCE)
        result.cpu_seconds += cpu_seconds
        for (_name, found), outcome in zip(result.rounds, outcomes, strict=True):
            found.append(outcome)
    for process in processes:
        process.join(timeout=_PATIENCE)
        assert process.exitcode == 0
    return result


def moves(prefix: str = "") -> list[str]:
    """Twenty rounds of moves over four models, and then some steps of a rollout of each."""
    found = [f"{method} {prefix}{model}" for model in MODELS for method in ("move",) * 4 + ("swing",)]
    return found + [f"transit {prefix}{model}" for model in MODELS]


def add_targets(catalog: Catalog, model: str) -> None:
    """The versions that moves go between, without bytes: nobody loads them."""
    writer = catalog._backend.writer
    writer.ensure_model(model, tags={}, description="")
    for number in range(1, TARGETS + 1):
        tags = {DIGEST: f"{number:064x}", CONTENT: f"{number:064x}"}
        assert writer.create_version(model, "s3://nowhere/model", tags=tags) == number


def _run(
    number: int,
    course: Course,
    rounds: Sequence[str],
    barrier: threading.Barrier,
    queue: Any,
    holder: Any,
) -> None:
    racer = Racer(number, course, course.catalog(number))
    outcomes = []
    for name in rounds:
        method, _, model = name.partition(" ")
        if model:
            racer.model = model
            # One looks for all of them: it is what they start from, and looking costs time.
            if number == 0:
                sight = racer.catalog.sight(model)
                holder.value = sight.head if method == "transit" else sight.holders.get("production", 0)
            barrier.wait(_PATIENCE)
            racer.holder = holder.value or None
        barrier.wait(_PATIENCE)
        outcomes.append(_attempt(number, getattr(racer, method)))
        barrier.wait(_PATIENCE)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    queue.put((outcomes, usage.ru_utime + usage.ru_stime))


def _attempt(racer: int, act: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(racer, value=act())
    except MlxError as error:
        return Outcome(racer, code=error.exit_code, message=error.message)
