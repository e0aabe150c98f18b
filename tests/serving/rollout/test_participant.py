"""One server's part: what it routes by what it has read. Registry, follower and disk are played."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rollout_stage import make_rollout, play, until

from mlx_platform.core.errors import UnavailableError
from mlx_platform.serving.rollout.deaths import Marks
from mlx_platform.serving.rollout.participant import Participant
from mlx_platform.serving.rollout.standing import Standing
from mlx_platform.serving.router import WARM

STEP = make_rollout(state="STEP", step=1, weight=40.0, shadow=0.0, event=3, controller="a")
BAKING = replace(STEP, state="BAKING", weight=100.0, window=2, event=5)


class PlayedOffice:
    """Reads what it is shown, and turns as it is told."""

    def __init__(self):
        self.leads = True
        self.error = None
        self.deaths = 0
        self.may_turn = threading.Event()
        self.may_turn.set()
        self.turns = 0
        self.later = None

    def read(self, sight):
        return sight

    def turn(self, sight, _own):
        self.turns += 1
        assert self.may_turn.wait(20)
        if self.error is not None:
            raise self.error
        return replace(self.later or sight, deaths=self.deaths)

    def fresh(self, _rollout):
        return self.leads

    def goodbye(self, _own):
        """Nobody listens."""


class PlayedFollower:
    """Has the candidate in memory."""

    def __init__(self, stage):
        self.listeners = []
        self.held = set()
        self.brought = []
        self.gone = []
        self.look = list
        self._stage = stage

    async def bring(self, number):
        self.brought.append((number, self.look()))
        return self._stage.pair[1]

    def let_go(self, served, *, now=False):
        self.gone.append((served.version, now))


class WatchedMarks(Marks):
    """Knows on which threads the disk was waited for."""

    def __init__(self, folder, owner):
        super().__init__(folder, owner)
        self.threads = set()

    def keep(self, held, over=()):
        self.threads.add(threading.get_ident())
        super().keep(held, over)


class Part:
    """A server that takes part, and what it is shown."""

    def __init__(self, stage, folder):
        self.stage = stage
        self.folder = folder
        self.office = PlayedOffice()
        self.follower = PlayedFollower(stage)
        self.follower.look = self.marks_there
        self.marks = WatchedMarks(folder, "this")
        stage.pair[1].engine.model = replace_digest(stage.pair[1].engine.model)
        stage.router.try_out(None)
        stage.router.observer = None
        self.server = Participant(stage.router, self.follower, stage.arms, self.office, self.marks)

    def marks_there(self):
        return sorted(path.parent.name for path in self.folder.rglob("*") if path.is_file())

    def show(self, rollout, production=1, seen=None):
        number = seen or (rollout.event if rollout is not None else 99)
        for listener in self.follower.listeners:
            listener(Standing(rollout, production, seen=number))

    @property
    def percent(self):
        split = self.stage.router.split
        return split.percent if split is not None else 0.0

    async def loaded(self):
        self.show(STEP)
        await until(lambda: self.percent == 40.0)


class replace_digest:  # noqa: N801 - stands for a model
    """The model, as the package that the rollout began with."""

    def __init__(self, model):
        self._model = model
        self.digest = "b"

    def __getattr__(self, name):
        return getattr(self._model, name)


@pytest.fixture
def taking_part(packages, tmp_path):
    @asynccontextmanager
    async def begun(stage):
        part = Part(stage, tmp_path / "marks")
        part.server.start()
        try:
            yield part
        finally:
            part.office.may_turn.set()
            await part.server.stop()
        assert part.marks_there() == []
        assert threading.get_ident() not in part.marks.threads

    def run(scenario):
        async def main(stage):
            async with begun(stage) as part:
                await scenario(part)

        play((packages["table"], packages["table"]), main)

    return run


def test_while_baking_all_go_to_the_candidate_only_as_long_as_it_holds_the_alias(taking_part):
    async def scenario(part):
        await part.loaded()
        part.office.error = UnavailableError("The registry cannot be written.")
        part.show(BAKING, production=2)
        assert part.percent == 100.0  # the follower is about to switch
        part.show(BAKING, production=1, seen=6)  # somebody took it back, and nobody has written that yet
        assert part.percent == 0.0
        part.follower.listeners[0](None)  # the registry is away
        await asyncio.sleep(0.3)  # and it settles again
        assert part.percent == 0.0

    taking_part(scenario)


def test_who_begins_while_a_promoted_version_bakes_gets_the_one_before_ready(taking_part):
    async def scenario(part):
        # This server has begun with version 1, which was promoted, and version 2 was there before.
        router, before = part.stage.router, part.stage.pair[1]
        router.remove(before)

        async def bring(number):
            part.follower.brought.append(number)
            router.add(before, WARM)
            return before

        part.follower.bring = bring
        part.show(replace(BAKING, stable=2, candidate=1), production=1)
        await until(lambda: part.follower.gone)
        await asyncio.sleep(0.2)  # and it settles again
        assert part.follower.brought == [2]
        assert part.follower.gone == [("2", False)]
        assert part.follower.held == {"1", "2"}

    taking_part(scenario)


def test_a_version_that_cannot_be_kept_ready_for_a_rollback_takes_nothing_from_what_is_served(
    taking_part, caplog
):
    async def scenario(part):
        async def refuse(_number):
            raise UnavailableError("no room")

        part.follower.bring = refuse
        part.stage.router.remove(part.stage.pair[1])
        part.show(replace(BAKING, stable=2, candidate=1), production=1)
        await until(lambda: "is not kept ready for a rollback: no room" in caplog.text)
        assert part.stage.router.stable.version == "1"

    taking_part(scenario)


def test_an_end_reaches_the_router_although_nothing_can_be_written(taking_part):
    async def scenario(part):
        await part.loaded()
        part.office.error = UnavailableError("The registry cannot be written.")
        part.show(None)
        assert part.percent == 0.0
        assert part.stage.router.candidate is None
        assert part.follower.gone == [("2", True)]
        await until(lambda: "cannot be written" in part.server.trouble)
        assert part.percent == 0.0

    taking_part(scenario)


def test_an_end_reaches_the_router_while_a_turn_hangs(taking_part):
    async def scenario(part):
        await part.loaded()
        part.office.may_turn.clear()
        turns = part.office.turns
        part.show(STEP)
        await until(lambda: part.office.turns > turns)
        part.show(None)
        assert part.percent == 0.0
        part.office.may_turn.set()
        await until(part.server._turning.done)
        assert part.percent == 0.0  # what the turn knew is older
        assert part.server.document()["rollout"] is None

    taking_part(scenario)


def test_what_was_looked_at_before_a_transition_of_our_own_takes_nothing_back(taking_part):
    async def scenario(part):
        await part.loaded()
        part.office.later = Standing(replace(STEP, weight=60.0, event=8), 1, seen=8)
        part.show(STEP)
        await until(lambda: part.percent == 60.0)
        part.office.later = None
        part.office.may_turn.clear()
        part.show(STEP)  # a look that began before that
        assert part.percent == 60.0

    taking_part(scenario)


def test_nothing_is_routed_where_nobody_leads(taking_part):
    async def scenario(part):
        await part.loaded()
        part.office.leads = False
        await until(lambda: part.percent == 0.0)

    taking_part(scenario)


def test_a_candidate_is_marked_before_it_is_loaded_and_the_mark_follows_its_window(taking_part):
    async def scenario(part):
        await part.loaded()
        assert part.follower.brought == [(2, ["r-1.1"])]
        part.show(replace(STEP, window=2, event=4))
        await until(lambda: part.marks_there() == ["r-1.2"])
        part.show(None)
        await until(lambda: not list(part.folder.iterdir()))

    taking_part(scenario)


def test_a_candidate_is_not_loaded_before_anybody_has_looked_for_deaths(taking_part):
    async def scenario(part):
        part.office.deaths = 2
        part.office.may_turn.clear()
        part.show(STEP)
        await asyncio.sleep(0.3)  # it settles in between
        assert part.follower.brought == []
        part.office.may_turn.set()
        await until(lambda: part.server.document()["deaths"] == 2)
        assert "died" in part.server.document()["problem"]
        assert part.follower.brought == []

    taking_part(scenario)


def test_a_disk_that_does_not_answer_has_nothing_loaded_and_holds_up_nobody(taking_part, monkeypatch, caplog):
    monkeypatch.setattr("mlx_platform.serving.rollout.participant._PATIENCE", 0.05)

    async def scenario(part):
        may_go = threading.Event()
        keep = part.marks.keep
        part.marks.keep = lambda *asked: (may_go.wait(20), keep(*asked))
        part.show(STEP)
        await until(lambda: "disk" in part.server.document()["problem"])
        assert part.follower.brought == []
        assert len([record for record in caplog.records if "which candidate" in record.message]) == 1
        may_go.set()

    taking_part(scenario)
