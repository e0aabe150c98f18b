"""This server's part in a rollout: the candidate beside the stable version, and requests shared between them.

What is shared follows the state that was read last, before anything is written; and it holds as long as
somebody leads: once the lease has ended, or the registry is away for as long, the stable version answers
everything. Neither the registry nor the disk is waited for on the event loop.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from mlx_platform.registry.sight import Sight
from mlx_platform.serving.following.aside import Aside, StillBusyError
from mlx_platform.serving.following.follower import Follower
from mlx_platform.serving.following.setback import Setback, said
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.rollout.assignment import goes_to_candidate
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.rollout.office import Office
from mlx_platform.serving.rollout.standing import DEADLY, Own, Standing
from mlx_platform.serving.rollout.state import ROUTED, Rollout
from mlx_platform.serving.router import Router, Split
from mlx_platform.serving.served import Served

_TICK_SECONDS = 0.25
_PATIENCE = 30.0  # seconds for a turn; one that takes longer goes on, and nobody waits for it
_FAREWELL_SECONDS = 2.0
_logger = logging.getLogger(__name__)


class Participant:
    """Lives on the event loop of the server.

    Args:
        router: sends requests to what is loaded.
        follower: loads what is wanted, and tells what it sees.
        arms: counts.
        office: deals with the registry.
        marks: kept while the candidate is loaded.
    """

    def __init__(self, router: Router, follower: Follower, arms: Arms, office: Office, marks: Marks) -> None:
        self.trouble = ""
        self._router = router
        self._follower = follower
        self._arms = arms
        self._office = office
        self._marks = marks
        self._aside = Aside("mlx-rollout")
        self._disk = Aside("mlx-rollout-marks")
        self._mark: tuple[str, int] | None = None  # what the disk should say
        self._marked: tuple[str, int] | None = None  # and says
        self._over: frozenset[str] = frozenset()  # rollouts of which it should say nothing more
        self._marks_kept = True
        self._marking: asyncio.Task[bool] | None = None
        self._standing = Standing()
        self._candidate: Served | None = None
        self._loading: asyncio.Task[None] | None = None
        self._setback: Setback | None = None
        self._problem = ""
        self._turning: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take part."""
        self._follower.listeners.append(self._see)
        self._ticking = asyncio.ensure_future(self._tick())

    async def stop(self) -> None:
        """Take part no more, and say so where that takes no long time."""
        if self._ticking is None:
            return
        own = self._own()
        self._follower.listeners.remove(self._see)
        tasks = [task for task in (self._ticking, self._turning, self._loading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._share(None)
        with suppress(Exception):
            await self._aside.do(partial(self._office.goodbye, own), _FAREWELL_SECONDS)
        self._mark = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                while not await asyncio.shield(self._keep_marks()):  # noqa: ASYNC110 - a disk sets no event
                    await asyncio.sleep(_TICK_SECONDS)

    def document(self) -> dict[str, Any]:
        """How it stands, JSON-ready; for any thread."""
        rollout, split = self._standing.rollout, self._router.split
        if rollout is None:
            return {"rollout": None, "trouble": self.trouble}
        return {
            "rollout": rollout.id,
            "candidate": str(rollout.candidate),
            "state": rollout.state,
            "step": rollout.step,
            "percent": split.percent if split is not None else 0.0,
            "copied_percent": rollout.shadow if self._copies(rollout) else 0.0,
            "loaded": self._candidate is not None,
            "leads": self._standing.leads,
            "leader": rollout.controller,
            "somebody_leads": self._office.fresh(rollout),
            "deaths": self._standing.deaths or 0,
            "problem": self._problem,
            "trouble": self.trouble,
        }

    def samples(self) -> Iterator[Sample]:
        """How it stands, for a scrape on any thread."""
        rollout, split = self._standing.rollout, self._router.split
        numbers = {
            "mlx_rollout_percent": (
                "Of requests that the candidate answers.",
                split.percent if split else 0.0,
            ),
            "mlx_rollout_active": ("1 while a rollout goes on.", float(rollout is not None)),
            "mlx_rollout_leads": ("1 while this process leads it.", float(self._standing.leads)),
            "mlx_rollout_loaded": ("1 while the candidate is loaded.", float(self._candidate is not None)),
        }
        for name, (text, value) in numbers.items():
            yield Sample(name, text, value, kind="gauge")
        counts = {
            "mlx_rollout_looks": ("Looks that this process has taken.", self._office.looks),
            "mlx_rollout_transitions": ("Transitions that it has written.", self._office.transitions),
            "mlx_rollout_conflicts": (
                "Transitions that somebody else had overtaken.",
                self._office.conflicts,
            ),
        }
        for name, (text, count) in counts.items():
            yield Sample(name, text, count)

    # Within

    def _see(self, sight: Sight | None) -> None:
        if sight is None:
            return
        self._read(sight)
        if self._turning is None or self._turning.done():
            self._turning = asyncio.ensure_future(self._turn(sight))

    def _read(self, sight: Sight) -> None:
        """Route as the registry says; that may not wait until something has been written there."""
        known, found = self._standing, self._office.read(sight)
        if found.seen >= known.seen:  # else it was looked at before a transition of our own
            self._standing = replace(found, deaths=known.deaths) if _same_window(known, found) else found
            self._settle()

    async def _turn(self, sight: Sight) -> None:
        before = self._standing
        try:
            found = await self._aside.do(partial(self._office.turn, sight, self._own()), _PATIENCE)
        except StillBusyError:
            return
        except Exception as error:  # noqa: BLE001 - whatever the registry holds, what is served goes on
            trouble = said(error)
            if trouble != self.trouble:
                _logger.warning("The rollout of %s cannot go on here: %s", self._router.name, trouble)
            self.trouble = trouble
        else:
            self.trouble = ""
            if self._standing is before or found.seen >= self._standing.seen:
                self._standing = found
            elif _same_window(self._standing, found):
                self._standing = replace(self._standing, deaths=found.deaths)
        self._settle()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._settle()
            if self._mark is not None:
                self._keep_marks()  # that it is still there

    def _own(self) -> Own | None:
        rollout = self._arms.rollout
        if rollout is None:
            return None
        counted = Window(self._arms.window.number)
        counted.add(self._arms.window)
        loaded = self._candidate is not None
        return Own(rollout.id, counted, loaded, self._problem, tuple(self._arms.differences()))

    def _settle(self) -> None:
        """Do what the rollout's state asks of this server; in doubt the stable version answers."""
        try:
            self._follow()
        except Exception:  # the rim: no fault of a rollout may reach a caller
            _logger.exception("The rollout of %s could not be followed.", self._router.name)
            self._share(None)
        if self._mark != self._marked or self._over:
            self._keep_marks()

    def _follow(self) -> None:
        rollout = self._standing.rollout
        if self._arms.rollout is not None and (rollout is None or rollout.id != self._arms.rollout.id):
            self._leave(self._arms.rollout)
        if rollout is None:
            return
        self._follower.held |= {str(rollout.stable), str(rollout.candidate)}
        self._router.observer = self._arms
        if self._candidate is not None and self._candidate not in self._router.loaded:
            self._candidate = None  # another version needed the room
        if rollout.state == "BAKING":
            self._mark = (rollout.id, rollout.window)
            self._keep_way_back(rollout)
        elif (self._standing.deaths or 0) >= DEADLY:
            self._problem = "Processes died with it, so it is not loaded."
            self._share(None)
            self._drop_candidate()
        elif self._candidate is None:
            self._begin_to_load(rollout)
        else:
            self._mark = (rollout.id, rollout.window)
        self._share(rollout)
        wanted, split = rollout.split[0], self._router.split
        alone = rollout.state != "BAKING" and wanted > 0 and (split is None or not split.percent)
        self._arms.divide(divided=not alone)
        pair = (self._router.stable, self._candidate) if self._candidate is not None else None
        self._arms.follow(rollout, pair if self._copies(rollout) else None)

    def _share(self, rollout: Rollout | None) -> None:
        """Send as many requests to the candidate as the state says, or none."""
        router, candidate = self._router, self._candidate
        percent = 0.0
        if rollout is not None and candidate is not None and router.stable.version == str(rollout.stable):
            if rollout.state == "BAKING":
                # The alias has moved, and the follower is about to; or it went back, and the follower has.
                percent = 100.0 if self._standing.production == rollout.candidate else 0.0
            elif self._office.fresh(rollout):
                percent = rollout.split[0]
        if rollout is None or candidate is None or candidate is router.stable:
            router.try_out(None)
            return
        if router.candidate is not candidate:
            router.try_out(candidate)
        wanted = Split(
            rollout.id, percent, rollout.shadow, rollout.plan.key_header.lower().encode(), goes_to_candidate
        )
        if router.split != wanted:
            router.split = wanted

    def _copies(self, rollout: Rollout) -> bool:
        """Whether requests are copied to the candidate now."""
        return (
            self._candidate is not None
            and rollout.split[1] > 0
            and self._router.stable.version == str(rollout.stable)
            and self._office.fresh(rollout)
        )

    def _begin_to_load(self, rollout: Rollout) -> None:
        loading = self._loading is not None and not self._loading.done()
        if loading or self._standing.deaths is None:
            return
        if rollout.state not in ROUTED or str(rollout.stable) != self._router.stable.version:
            return
        if self._setback is not None and self._setback.holds(rollout.candidate):
            return
        self._mark = (rollout.id, rollout.window)
        self._loading = asyncio.ensure_future(self._load(rollout))

    async def _load(self, rollout: Rollout) -> None:
        try:
            served = await self._bring(rollout.candidate)
        except Exception as error:  # noqa: BLE001 - of every kind there is; the stable version goes on
            self._setback = Setback.of(rollout.candidate, error, self._setback)
            self._problem = self._setback.message
            self._mark = None
            _logger.warning("%s could not be loaded: %s", rollout.ref, self._problem)
            return
        self._setback, self._problem = None, ""
        now = self._standing.rollout
        if now is None or now.id != rollout.id:
            self._follower.let_go(served, now=True)
            return
        if served.engine.model.digest != rollout.candidate_digest:
            self._problem = "It is not the package that the rollout began with."
            self._follower.let_go(served, now=True)
            return
        self._candidate = served
        self._settle()

    def _keep_way_back(self, rollout: Rollout) -> None:
        """Have the version in memory that a rollback would go to, also where this process began after it."""
        way_back = str(rollout.stable)
        loading = self._loading is not None and not self._loading.done()
        if loading or self._router.stable.version != str(rollout.candidate):
            return
        if any(served.version == way_back for served in self._router.loaded):
            return
        if self._setback is None or not self._setback.holds(rollout.stable):
            self._loading = asyncio.ensure_future(self._load_way_back(rollout))

    async def _load_way_back(self, rollout: Rollout) -> None:
        try:
            served = await self._follower.bring(rollout.stable)
        except Exception as error:  # noqa: BLE001 - of every kind there is; what was promoted goes on
            self._setback = Setback.of(rollout.stable, error, self._setback)
            _logger.warning(
                "%s/%d is not kept ready for a rollback: %s",
                *(rollout.model, rollout.stable, self._setback.message),
            )
            return
        self._setback = None
        self._follower.let_go(served)

    async def _bring(self, number: int) -> Served:
        if not await asyncio.shield(self._keep_marks()):  # before: it may end this process
            raise StillBusyError("The disk does not say that the candidate is loaded.")
        return await self._follower.bring(number)

    def _drop_candidate(self) -> None:
        candidate, self._candidate = self._candidate, None
        if candidate is not None:
            self._follower.let_go(candidate, now=True)
        self._mark = None

    def _leave(self, rollout: Rollout) -> None:
        """The rollout is over: what is not served is let go, the candidate at once unless it was promoted."""
        self._arms.leave()
        self._router.observer = None
        self._share(None)
        self._setback, self._problem = None, ""
        self._mark = None
        self._over |= {rollout.id}
        self._follower.held -= {str(rollout.stable), str(rollout.candidate)}
        wanted = str(self._standing.production)
        for served in self._router.loaded:
            if served.version not in {wanted, self._router.stable.version}:
                self._follower.let_go(served, now=served is self._candidate)
        self._candidate = None

    def _keep_marks(self) -> "asyncio.Task[bool]":
        """Have the disk say what it should; whether it does, in the end."""
        if self._marking is None or self._marking.done():
            self._marking = asyncio.ensure_future(self._write_marks())
        return self._marking

    async def _write_marks(self) -> bool:
        while True:
            mark, over = self._mark, self._over
            try:
                await self._disk.do(partial(self._marks.keep, mark, over), _PATIENCE)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the disk, what is served goes on
                level = logging.WARNING if self._marks_kept else logging.DEBUG
                _logger.log(level, "The disk does not say which candidate is loaded: %s", said(error))
                self._marks_kept = False
                return False
            self._marks_kept, self._marked, self._over = True, mark, self._over - over
            if mark == self._mark and not self._over:
                return True


def _same_window(one: Standing, other: Standing) -> bool:
    """Whether both are of the same window of the same rollout."""
    if one.rollout is None or other.rollout is None:
        return False
    return (one.rollout.id, one.rollout.window) == (other.rollout.id, other.rollout.window)
