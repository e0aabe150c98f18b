"""This server's part in a rollout: the candidate beside the stable version, and requests shared between them.

What is shared follows the state that was read last, and holds as long as somebody leads: once the lease has
ended, or the registry is away for as long, the stable version answers everything.
"""

import asyncio
import logging
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from mlx_platform.core.errors import MlxError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.settings import Settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.sight import Sight
from mlx_platform.serving.following.aside import Aside, StillBusyError
from mlx_platform.serving.following.followed import Followed
from mlx_platform.serving.following.follower import Follower
from mlx_platform.serving.following.setback import Setback, said
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.rollout.assignment import goes_to_candidate
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.rollout.lookbook import Lookbook, looks_folder
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.rollout.office import Office
from mlx_platform.serving.rollout.standing import DEADLY, Own, Standing
from mlx_platform.serving.rollout.state import ROUTED, Rollout
from mlx_platform.serving.rollout.witness import record_beside
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
        self._marks.clear()

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
        if sight is not None and (self._turning is None or self._turning.done()):
            self._turning = asyncio.ensure_future(self._turn(sight))

    async def _turn(self, sight: Sight) -> None:
        turn = partial(self._office.turn, sight, self._own())
        try:
            self._standing = await self._aside.do(turn, _PATIENCE)
        except StillBusyError:
            return
        except Exception as error:  # noqa: BLE001 - whatever the registry holds, what is served goes on
            trouble = said(error)
            if trouble != self.trouble:
                _logger.warning("The rollout of %s cannot go on here: %s", self._router.name, trouble)
            self.trouble = trouble
        else:
            self.trouble = ""
        self._settle()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._settle()

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

    def _follow(self) -> None:
        rollout = self._standing.rollout
        if self._arms.rollout is not None and (rollout is None or rollout.id != self._arms.rollout.id):
            self._leave(self._arms.rollout)
        if rollout is None:
            return
        self._marks.touch()
        self._follower.held |= {str(rollout.stable), str(rollout.candidate)}
        self._router.observer = self._arms
        if self._candidate is not None and self._candidate not in self._router.loaded:
            self._candidate = None  # another version needed the room
        if rollout.state == "BAKING":
            self._marks.set(rollout.id, rollout.window)
        elif (self._standing.deaths or 0) >= DEADLY:
            self._problem = "Processes died with it, so it is not loaded."
            self._share(None)
            self._drop_candidate()
        elif self._candidate is None:
            self._begin_to_load(rollout)
        else:
            self._marks.set(rollout.id, rollout.window)
        self._share(rollout)
        pair = (self._router.stable, self._candidate) if self._candidate is not None else None
        self._arms.follow(rollout, pair if self._copies(rollout) else None)

    def _share(self, rollout: Rollout | None) -> None:
        """Send as many requests to the candidate as the state says, or none."""
        router, candidate = self._router, self._candidate
        percent = 0.0
        if rollout is not None and candidate is not None and router.stable.version == str(rollout.stable):
            if rollout.state == "BAKING":
                percent = 100.0  # the alias has moved, and the follower is about to
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
        if loading or rollout.state not in ROUTED or str(rollout.stable) != self._router.stable.version:
            return
        if self._setback is not None and self._setback.holds(rollout.candidate):
            return
        self._marks.set(rollout.id, rollout.window)  # before: it may end this process
        self._loading = asyncio.ensure_future(self._load(rollout))

    async def _load(self, rollout: Rollout) -> None:
        try:
            served = await self._follower.bring(rollout.candidate)
        except Exception as error:  # noqa: BLE001 - of every kind there is; the stable version goes on
            self._setback = Setback.of(rollout.candidate, error, self._setback)
            self._problem = self._setback.message
            self._marks.clear()
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

    def _drop_candidate(self) -> None:
        candidate, self._candidate = self._candidate, None
        if candidate is not None:
            self._follower.let_go(candidate, now=True)
        self._marks.clear()

    def _leave(self, rollout: Rollout) -> None:
        """The rollout is over: what is not served is let go, the candidate at once unless it was promoted."""
        self._arms.leave()
        self._router.observer = None
        self._share(None)
        self._setback, self._problem = None, ""
        self._marks.forget(rollout.id)
        self._follower.held -= {str(rollout.stable), str(rollout.candidate)}
        wanted = str(self._standing.production)
        for served in self._router.loaded:
            if served.version not in {wanted, self._router.stable.version}:
                self._follower.let_go(served, now=served is self._candidate)
        self._candidate = None


def take_part(followed: Followed, router: Router, follower: Follower, arms: Arms) -> Participant:
    """Make a server that follows an alias take part in its rollouts."""
    settings = followed.settings
    host = re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:48] or "server"
    me = f"{host}-{secrets.token_hex(6)}"
    marks = Marks(settings.path(settings.cache.dir) / "rollouts" / "loaded", me)
    office = Office(
        Catalog(settings),
        followed.name,
        followed.alias,
        me=me,
        marks=marks,
        book=Lookbook(looks_folder(settings)),
        witness=partial(_testify, settings),
    )
    return Participant(router, follower, arms, office, marks)


def _testify(settings: Settings, ref: str, evidence: Evidence) -> None:
    """Record evidence beside everything else."""
    threading.Thread(
        target=_record, args=(settings, ref, evidence), name="mlx-rollout-evidence", daemon=True
    ).start()


def _record(settings: Settings, ref: str, evidence: Evidence) -> None:
    try:
        record_beside(settings, ref, evidence)
    except MlxError as error:
        _logger.warning("%s", error.message)
