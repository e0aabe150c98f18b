"""Keeps a server on the version that an alias means: the next one is made ready beside it, then it switches.

Nothing that the registry does reaches a client: it is asked on a thread of its own, and where it is away,
slow or broken, what is served stays. What cannot be loaded or does not answer as it should never serves.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from mlx_platform.registry.sight import Sight
from mlx_platform.serving.assembly import Assembly
from mlx_platform.serving.exchange import WARM
from mlx_platform.serving.following.aside import Aside, short_turns
from mlx_platform.serving.following.desk import VERSIONS, Desk
from mlx_platform.serving.following.setback import REASONS, DeadlyError, Setback, said
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.router import Router
from mlx_platform.serving.served import Served

_LOOK_SECONDS = 10.0  # that a look may take before the registry counts as away
_LOAD_SECONDS = 600.0
_MOST_DEATHS = 2
_logger = logging.getLogger(__name__)

Listener = Callable[[Sight | None], None]


class Marks(Protocol):
    """Marks on the disk of what this process is loading, by which those after it see what it died of."""

    def set(self, what: str, step: int, /) -> None:
        """Begin."""

    def clear(self) -> None:
        """It has not died of it."""

    def deaths(self, what: str, step: int, /) -> int:
        """How many processes died of it, one after the other."""

    def forget(self, what: str, /) -> None:
        """Give it another chance."""


class Follower:
    """Lives on the event loop of the server.

    Whoever loads or notes something does so with `_one_at_a_time`, since there is one thread for it.

    Attributes:
        sight: what the last look saw; None before the first, and while the registry cannot be seen.
        trouble: why that is so.
        listeners: called after each look, with what it saw.
        held: versions that stay in memory however long nobody is sent to them.

    Args:
        router: sends requests to what is loaded.
        assembly: makes loaded models fit to serve.
        desk: the registry.
        keep_warm: seconds for which a version stays in memory that was replaced.
        marks: a version that ended so many processes that began to load it is not loaded again.
    """

    def __init__(
        self, router: Router, assembly: Assembly, desk: Desk, keep_warm: float, marks: Marks
    ) -> None:
        self.sight: Sight | None = None
        self.trouble = "It was not looked at yet."
        self.listeners: list[Listener] = []
        self.held: set[str] = set()
        self.setback: Setback | None = None
        self._router = router
        self._assembly = assembly
        self._desk = desk
        self._keep_warm = keep_warm
        self._marks = marks
        self._eyes = Aside("mlx-follow-look")
        # A runtime with threads of its own keeps them, and they must be as quick as those that serve.
        self._hands = Aside("mlx-follow-load", gentle=router.engine.model.session.threads == 1)
        self._pens = Aside("mlx-follow-log")
        self._one_at_a_time = asyncio.Lock()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endings: set[asyncio.Task[Any]] = set()
        self._switching: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._said = ""  # the trouble that the log has
        self._switches = 0
        self._seconds = 0.0
        self._failures: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def start(self) -> None:
        """Begin to look."""
        self._spawn(self._watch())

    async def stop(self) -> None:
        """Look no more, and load nothing; what is loaded stays, and what was about to end does."""
        for timer in self._timers.values():
            timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._endings, return_exceptions=True)

    async def bring(self, number: int) -> Served:
        """Have a version ready beside what serves; one that is in memory already is ready at once.

        Raises:
            MlxError: it cannot be loaded, or does not answer as it should.
            Exception: anything else that went wrong with it.
        """
        served = self._find(number)
        if served is None:
            async with self._one_at_a_time:
                served = self._find(number) or await self._load(number)
        self._stop_timer(served)  # whoever asked for it says when it may go
        return served

    def let_go(self, served: Served, *, now: bool = False) -> None:
        """Send nobody to a version any more, and unload it: after a while, or as soon as it is idle."""
        if served is self._router.stable or served not in self._router.loaded:
            return
        self._router.stand_by(served)
        if now or not (self._keep_warm or served.version in self.held):
            self._spawn(self._unload(served))
            return
        self._wait_for_expiry(served)

    def document(self) -> dict[str, Any]:
        """How it stands, JSON-ready; for any thread."""
        target = self._target()
        return {
            "reference": self._desk.reference,
            "target": str(target) if target is not None else None,
            "serves": self._router.stable.version,
            "loaded": {served.version: served.arm for served in self._router.loaded},
            "registry": self.trouble or "ok",
            "heard_s_ago": round(time.monotonic() - self._heard, 3) if self._heard else None,
            "setback": self.setback.document() if self.setback is not None else None,
            "switches": self._switches,
        }

    def samples(self) -> Iterator[Sample]:
        """What is counted, for a scrape on any thread."""
        yield Sample("mlx_reloads", "Switches to another version.", self._switches)
        for reason, count in tuple(self._failures.items()):
            yield Sample(
                "mlx_reload_failures",
                "Versions that could not be loaded, so that the one before them went on.",
                count,
                (("reason", reason),),
            )
        yield Sample("mlx_reload_seconds", "That the last load took.", self._seconds, kind="gauge")
        yield Sample("mlx_loaded_versions", "Versions in memory.", len(self._router.loaded), kind="gauge")
        yield Sample(
            "mlx_registry_up", "1 while the registry can be seen.", int(not self.trouble), kind="gauge"
        )

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            self.sight = await self._look()
            for listener in tuple(self.listeners):
                try:
                    listener(self.sight)
                except Exception:  # the rim: looking goes on whatever somebody makes of what was seen
                    _logger.exception("What the registry says could not be followed.")
            self._consider()
            await asyncio.sleep(max(0.0, began + self._desk.interval - time.monotonic()))

    async def _look(self) -> Sight | None:
        try:
            sight = await self._eyes.do(self._desk.look, _LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - whatever the registry holds, what is served goes on
            self.trouble = said(error)
            if self.trouble != self._said:
                _logger.warning(
                    "%s cannot be seen, and version %s goes on: %s",
                    self._desk.reference,
                    self._router.stable.version,
                    self.trouble,
                )
            self._said = self.trouble
            return None
        if self._said:
            _logger.warning("%s can be seen again.", self._desk.reference)
        self.trouble = self._said = ""
        self._heard = time.monotonic()
        return sight

    def _target(self) -> int | None:
        """The version that is wanted; None where nobody says so."""
        sight = self.sight
        return sight.holders.get(self._desk.alias) if sight is not None else None

    def _consider(self) -> None:
        """Begin to switch where that is wanted; only the newest wish counts."""
        target = self._target()
        if target is None or str(target) == self._router.stable.version:
            if target is not None and self.setback is not None:
                self._marks.forget(self._mark_of(self.setback.number))  # should it come back, it is tried
                self.setback = None
            return
        if self.setback is not None and self.setback.holds(target):
            return
        if self._switching is None or self._switching.done():
            self._switching = self._spawn(self._switch())

    async def _switch(self) -> None:
        while (target := self._target()) is not None and str(target) != self._router.stable.version:
            began = time.monotonic()
            try:
                served = await self._try(target)
            except Exception as error:  # noqa: BLE001 - of every kind there is; what serves goes on
                self._note(target, error)
                return
            if target != self._target() and self._target() is not None:
                if served is not self._router.candidate:
                    self.let_go(served)  # overtaken by a newer wish
                continue
            self._take(served, time.monotonic() - began)
            self._spawn(self._note_down(served))

    async def _note_down(self, served: Served) -> None:
        """Leave notes for later. They may have to wait for a load or a disk, and no switch waits for them."""
        number = int(served.version)
        notes: dict[str, Callable[[], Any]] = {
            "for a start without the registry": partial(self._desk.remember, served.engine.model),
            "as one that ends no process": partial(self._marks.forget, self._mark_of(number)),
        }
        for what, note in notes.items():
            try:
                async with self._one_at_a_time:
                    await self._hands.do(note, _LOAD_SECONDS)
            except Exception as error:  # noqa: BLE001 - of every kind there is; it serves all the same
                _logger.warning("Version %d could not be noted %s: %s", number, what, said(error))

    async def _try(self, target: int) -> Served:
        """Bring a version, unless that has ended processes before."""
        served = self._find(target)
        if served is not None:
            return served
        async with self._one_at_a_time:  # somebody may be loading a candidate, which may be this one
            return self._find(target) or await self._load_marked(target)

    async def _load_marked(self, target: int) -> Served:
        mark = self._mark_of(target)
        deaths = await self._hands.do(partial(self._marks.deaths, mark, 0), _LOAD_SECONDS)
        if deaths >= _MOST_DEATHS:
            raise DeadlyError(f"{deaths} processes that began to load it ended without being asked.")
        await self._hands.do(partial(self._marks.set, mark, 0), _LOAD_SECONDS)
        try:
            return await self._load(target)
        finally:
            self._marks.clear()

    def _mark_of(self, number: int) -> str:
        return f"{self._router.name}-{number}"

    def _take(self, served: Served, seconds: float) -> None:
        self._stop_timer(served)
        before = self._router.switch(served)
        self._switches += 1
        self.setback = None
        self.let_go(before)
        _logger.warning(
            "%s is version %s now, after %.1f s; it was %s.",
            self._desk.reference,
            served.version,
            seconds,
            before.version,
        )

    def _note(self, target: int, error: Exception) -> None:
        before = self.setback
        self.setback = Setback.of(target, error, before)
        self._failures[self.setback.reason] += 1
        if self.setback.reason == "error":
            _logger.error("Version %d could not be loaded.", target, exc_info=error)
        if before is None or (before.number, before.message) != (target, self.setback.message):
            _logger.warning(
                "%s/%d could not be loaded, and version %s goes on: %s",
                self._router.name,
                target,
                self._router.stable.version,
                self.setback.message,
            )

    def _find(self, number: int) -> Served | None:
        return next((served for served in self._router.loaded if served.version == str(number)), None)

    async def _load(self, number: int) -> Served:
        await self._make_room()
        began = time.monotonic()
        with short_turns():
            served = await self._prepare(number)
        self._seconds = time.monotonic() - began
        self._router.add(served, WARM)
        return served

    async def _prepare(self, number: int) -> Served:
        spec = self._router.engine.model.spec
        model = await self._hands.do(partial(self._desk.obtain, number, spec), _LOAD_SECONDS)
        writer = await self._pens.do(partial(self._desk.log, number), _LOAD_SECONDS)
        served = self._assembly.make(model, writer)
        warming = Aside("mlx-follow-warm", gentle=True)  # of its own: it may hang in this version
        try:
            async with asyncio.timeout(_LOAD_SECONDS):
                await self._assembly.start(served, partial(warming.do, patience=_LOAD_SECONDS))
        except BaseException:
            self._end(self._assembly.take_apart(served))
            raise
        finally:
            warming.close()
        return served

    async def _make_room(self) -> None:
        """Unload what nobody is sent to, so that there are never more versions than memory is shared by.

        A version that was taken out has its memory until it has finished the requests that it has.
        """
        while len(self._router.loaded) + len(self._endings) >= VERSIONS:
            if self._endings:
                await asyncio.wait(tuple(self._endings))
                continue
            spare = next(served for served in self._router.loaded if served is not self._router.stable)
            await self._unload(spare)

    async def _unload(self, served: Served) -> None:
        if served is self._router.stable or served not in self._router.loaded:
            return
        self._stop_timer(served)
        self._router.remove(served)
        await asyncio.shield(self._end(self._finish(served)))

    async def _finish(self, served: Served) -> None:
        await self._assembly.take_apart(served)
        self._router.add_up(served)
        _logger.info("Version %s was unloaded.", served.version)

    def _wait_for_expiry(self, served: Served) -> None:
        self._stop_timer(served)
        loop = asyncio.get_running_loop()
        delay = max(self._keep_warm, self._desk.interval)  # what is held is looked at again and again
        self._timers[served.version] = loop.call_later(delay, self._expire, served)

    def _expire(self, served: Served) -> None:
        self._timers.pop(served.version, None)
        if served.version in self.held:
            self._wait_for_expiry(served)
        elif served not in {self._router.stable, self._router.candidate}:
            self._spawn(self._unload(served))

    def _stop_timer(self, served: Served) -> None:
        timer = self._timers.pop(served.version, None)
        if timer is not None:
            timer.cancel()

    def _end(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do what must come to its end even when the server stops meanwhile."""
        task = asyncio.ensure_future(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
