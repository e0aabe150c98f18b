"""Two versions in this process, one of which may be told to misbehave, and a rollout between them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tables import read_table
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.rollout.plan import Plan, Step
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.router import Router
from mlx_platform.serving.runner import ModelRunner
from mlx_platform.serving.served import Served

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
ROW = {"a": 1, "b": 2, "c": 3, "d": 4}


class Actor(ModelRunner):
    """A model that computes, or does what it is told: raise, hang, or change its outputs."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.error: Exception | None = None
        self.change: Any = None
        self.may_go = threading.Event()
        self.may_go.set()
        self.runs = 0

    def run(self, feeds: Any, outputs: tuple[str, ...], timeout: float) -> Mapping[str, Any]:
        self.runs += 1
        self.may_go.wait(20)
        if self.error is not None:
            raise self.error
        found = super().run(feeds, outputs, timeout)
        return {name: self.change(array) for name, array in found.items()} if self.change else found

    def stop(self, thread: int) -> None:
        """Nothing ends what hangs before it may go on."""


@dataclass
class Stage:
    """Both versions, what routes between them, and what counts."""

    router: Router
    arms: Arms
    stable: Actor
    candidate: Actor
    pair: tuple[Served, Served]

    async def ask(
        self, rows: Any = (ROW,), *, request_id: str = "r", served: Served | None = None, **wishes: bytes
    ) -> int:
        """One request as a protocol brings it; its status."""
        served = served or self.router.choose(request_id, {})
        headers = {name.replace("_", "-").encode(): value for name, value in wishes.items()}
        exchange = served.open(request_id, "predict", headers, None)
        return await self._conclude(served, exchange, served.predict(list(rows), exchange))

    async def _conclude(self, served: Served, exchange: Exchange, answer: Any) -> int:
        status, error = 200, ""
        try:
            await answer
        except Refusal as refusal:
            status, error = refusal.status, refusal.message
        self.router.finish(served, exchange, status=status, error=error)
        return status

    async def settle(self) -> None:
        """Wait until every copy has been counted."""
        shadow = self.arms._shadow
        if shadow is not None:
            await until(lambda: not shadow.busy)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that comes by itself."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for a test
            await asyncio.sleep(0.002)


def make_rollout(**changes: Any) -> Rollout:
    plan = Plan(
        steps=(Step("shadow", 100.0, 1, 0.0, 60.0), Step("weight", 5.0, 1, 0.0, 60.0)),
        warmup_requests=0,
        warmup_s=0.0,
    )
    rollout = Rollout(
        id="r-1",
        model="table",
        channel="production",
        stable=1,
        candidate=2,
        stable_digest="a",
        candidate_digest="b",
        plan=plan,
        state="SHADOW",
        step=0,
        window=1,
        weight=0.0,
        shadow=100.0,
        started_at=NOON,
        state_since=NOON,
        step_since=NOON,
    )
    return replace(rollout, **changes)


@asynccontextmanager
async def _acting(
    folders: tuple[Path, Path], writers: tuple[Any, Any], settings: ServingSettings
) -> AsyncIterator[Stage]:
    served, actors = [], []
    for version, (folder, writer) in enumerate(zip(folders, writers, strict=True), 1):
        package = open_package(folder)
        model = Model.load(package, name="table", version=str(version), device="cpu", threads=1)
        actors.append(Actor(model))
        engine = Engine(model, settings, Metrics(), writer, runner=actors[-1])
        await engine.start()
        assert engine.batcher is not None
        engine.batcher.inline_cells = 0  # what hangs may not hang the loop
        served.append(Served(engine, settings))
    router = Router(served[0])
    router.add(served[1], "canary")
    router.try_out(served[1])
    router.observer = arms = Arms(settings)
    for actor in actors:
        actor.runs = 0
    try:
        yield Stage(router, arms, actors[0], actors[1], (served[0], served[1]))
    finally:
        arms.leave()
        for actor in actors:
            actor.may_go.set()
        for each in served:
            await each.engine.close(1.0)


def play(
    folders: tuple[Path, Path],
    scenario: Callable[[Stage], Awaitable[Any]],
    *,
    writers: tuple[Any, Any] = (None, None),
    **settings: Any,
) -> Any:
    """Run a scenario with a stable version and a candidate, of these package folders, on one event loop."""
    chosen = read_table(ServingSettings, settings, source="the test")

    async def main() -> Any:
        async with _acting(folders, writers, chosen) as stage:
            return await scenario(stage)

    return asyncio.run(main())


def shuffled(array: Any) -> Any:
    """Probabilities of the classes in another order."""
    return np.roll(array, 1, axis=-1)
