"""Offices whose registry cannot be written, whose processes die, and whose clocks are wrong."""

from dataclasses import replace
from datetime import timedelta

import pytest
from fleets import MODEL
from offices import PLAN

from mlx_platform.core.clock import system_clock
from mlx_platform.core.errors import UnavailableError
from mlx_platform.serving.rollout import office
from mlx_platform.serving.rollout.plan import Step
from mlx_platform.serving.rollout.steady import RolloutClock


def _refuse(*_arguments, **_options):
    raise UnavailableError("The registry cannot be written.")


def test_an_end_is_seen_where_the_registry_can_only_be_read(fleet, process, time, caplog):
    fleet.roll_out("sound", PLAN)
    one = process()
    assert one.turn().leads
    fleet.ask("abort")
    one.catalog.delete_model_tags = _refuse
    for _ in range(3):
        assert one.turn().rollout is None
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.message for record in warnings if "stay at" in record.message] == [
        f"Tags of rollouts that are over stay at {MODEL}: The registry cannot be written."
    ]
    del one.catalog.delete_model_tags
    one.turn()  # and they go as soon as that is possible
    assert not [tag for tag in one.catalog.sight(MODEL).tags if tag.startswith("mlx.rollout.")]


def test_how_things_stand_is_read_without_asking_anybody(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    before = one.catalog.sight(MODEL)
    one.turn()
    during = one.catalog.sight(MODEL)
    fleet.ask("abort")
    after = one.catalog.sight(MODEL)
    one.office._catalog = None
    found = [one.office.read(sight) for sight in (before, during, after)]
    assert [standing.rollout is not None for standing in found] == [True, True, False]
    assert [standing.leads for standing in found] == [False, True, False]
    assert {standing.production for standing in found} == {1}
    assert [standing.seen for standing in found] == [s.journal_end for s in (before, during, after)]
    assert found[0].deaths is None


def test_a_transition_counts_although_what_it_leaves_cannot_be_taken_away(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    one.turn()
    one.counts(requests=400)
    one.turn()
    time.passes(1.5)
    one.catalog.delete_model_tags = _refuse
    assert one.turn().rollout.state == "STEP"


def test_whoever_failed_and_waits_for_somebody_is_not_taken_over_again_and_again(fleet, process, time):
    fleet.roll_out("sound", replace(PLAN, on_fail="pause"))
    marks = fleet.folder / "machines" / "a" / "loaded" / "r1.0"
    marks.mkdir(parents=True)
    (marks / "a-8").write_text("100")
    (marks / "a-9").write_text("9" * 19)
    one, two = process("a-1"), process("a-2")
    for _ in range(6):
        one.turn()
        two.turn()
    assert fleet.states == ["SHADOW 0", "PAUSED 0"]
    assert fleet.rollout.cause == "fail"
    assert len(fleet.catalog.rollouts(MODEL)[-1]) <= 4  # it began, two led, and one paused it


@pytest.mark.parametrize("wrong", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_process_whose_clock_is_wrong_holds_a_step_for_as_long_as_any_other(
    fleet, process, time, monkeypatch, wrong
):
    monkeypatch.setattr(
        office, "RolloutClock", lambda monotonic: RolloutClock(lambda: system_clock() + wrong, monotonic)
    )
    held = replace(PLAN, steps=(Step("shadow", 100.0, 300, 20.0, 60.0), *PLAN.steps[1:]))
    one = process()
    one.turn()  # it was there before the rollout
    fleet.roll_out("sound", held)
    one.turn()
    one.counts(requests=400)
    time.passes(15)
    assert one.turn().rollout.state == "SHADOW"
    time.passes(6)
    assert one.turn().rollout.state == "STEP"
