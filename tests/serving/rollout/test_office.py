"""Offices of several processes on one real registry; only time is made."""

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import fleets
import pytest
from fleets import MODEL, NUMBERS
from offices import PLAN, Process, passes
from prometheus_servers import prometheus, vector

from mlx_platform.core.errors import ConflictError
from mlx_platform.core.verdict import Verdict
from mlx_platform.serving.rollout.carrying import promote
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.lookbook import read_looks
from mlx_platform.serving.rollout.office import Own
from mlx_platform.serving.rollout.plan import MetricRule, Step
from mlx_platform.serving.rollout.publication import published


def test_a_sound_version_goes_through_all_steps_and_is_promoted(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    for _ in range(3):
        passes(one, time)
    time.passes(11)
    assert one.turn().rollout is None
    assert fleet.states == ["SHADOW 0", "STEP 1", "PROMOTING 2", "BAKING 2", "PROMOTED 2"]
    assert fleet.production == NUMBERS["sound"]
    assert [(e.kind, e.verdict) for _, e in one.evidence] == [
        ("shadow", Verdict.PASS),
        ("rollout", Verdict.PASS),
    ]
    found = fleet.catalog.evidence(fleet.catalog.resolve(f"{MODEL}/{NUMBERS['sound']}"))
    assert {kind: summary.verdict for kind, summary in found.items()} == {"shadow": "pass", "rollout": "pass"}
    assert found["shadow"].numbers["error_rate"]["requests"] == 400
    moved = fleet.catalog.history(MODEL, alias="production")[0]
    assert (moved.kind, moved.evidence["rollout"]) == ("promote", "r1")
    assert "canary" not in fleet.catalog.holders(MODEL)
    one.turn()
    assert not [tag for tag in one.catalog.sight(MODEL).tags if tag.startswith("mlx.rollout.")]
    looks = read_looks(one.folder / "looks", "r1")
    assert {look["state"] for look in looks} == {"SHADOW", "STEP", "BAKING"}
    assert looks[0]["arms"]["shadow"]["n"] == 400


def test_one_that_fails_ends_in_one_event_and_is_quarantined(fleet, process, time):
    fleet.roll_out("nan", PLAN)
    one = process()
    passes(one, time)
    one.counts(requests=60, errors=60)
    time.passes(1.5)
    assert one.turn().rollout is None
    assert fleet.states == ["SHADOW 0", "STEP 1", "ABORTED 1"]
    ended = fleet.rollout
    assert (ended.weight, ended.cause) == (0.0, "error_rate")
    assert fleet.production == 1
    assert "canary" not in fleet.catalog.holders(MODEL)
    assert "error_rate" in fleet.catalog.resolve(f"{MODEL}/{NUMBERS['nan']}").quarantined
    assert one.evidence[-1][1].verdict is Verdict.FAIL
    time.passes(100)
    one.turn()
    assert fleet.states[-1] == "ABORTED 1"  # and it stays so


def test_the_worst_differences_are_kept_with_the_look_after_which_they_are_others(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process("one-a")
    one.turn()
    for requests, differences in ((10, ()), (10, ({"request_id": "r-1"},)), (10, ({"request_id": "r-1"},))):
        one.counts(requests=requests)
        one.differences = differences
        time.passes(6)
        one.turn()
    looks = read_looks(one.folder / "looks", "r1")
    assert [look.get("differences") for look in looks] == [None, [{"request_id": "r-1"}], None]


def test_nothing_goes_on_without_requests(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    one.turn()
    for _ in range(130):
        time.passes(0.5)
        one.turn()
    assert fleet.states == ["SHADOW 0", "PAUSED 0"]
    assert fleet.rollout.cause == "no_data"
    one.counts(requests=60, errors=60)  # and then it fails, paused as it is
    time.passes(200)
    one.turn()
    assert fleet.states == ["SHADOW 0", "PAUSED 0", "ABORTED 0"]


def test_a_stable_version_that_fails_itself_is_not_blamed_on_the_candidate(fleet, process, time):
    fleet.roll_out("sound", replace(PLAN, steps=PLAN.steps[1:]))
    one = process()
    one.turn()
    one.counts(requests=400, errors=200, stable_errors=200)
    time.passes(1.5)
    one.turn()
    assert (fleet.rollout.state, fleet.rollout.cause) == ("PAUSED", "baseline_unhealthy")


def test_a_promoted_version_that_fails_is_taken_back(fleet, process, time):
    fleet.roll_out("slow", PLAN)
    one = process()
    for _ in range(2):
        passes(one, time)
    one.turn()
    assert fleet.production == NUMBERS["slow"]
    one.counts(requests=400, slower=10.0)
    time.passes(1.5)
    one.turn()
    assert fleet.rollout.state == "ROLLED_BACK"
    assert fleet.production == 1
    assert fleet.catalog.resolve(f"{MODEL}/{NUMBERS['slow']}").quarantined
    back = fleet.catalog.history(MODEL, alias="production")[0]
    assert (back.kind, back.evidence["rollout"]) == ("rollback", "r1")


def test_a_slow_version_is_taken_back_although_a_pause_was_resumed_before_its_promotion(fleet, process, time):
    fleet.roll_out("slow", replace(PLAN, steps=(PLAN.steps[1], Step("pause"), PLAN.steps[2])))
    one = process()
    passes(one, time)
    assert fleet.states == ["STEP 0", "PAUSED 1"]
    fleet.ask("resume")
    one.turn()
    assert (fleet.rollout.state, fleet.rollout.baseline["n"]) == ("BAKING", 400)
    one.counts(requests=400, slower=50.0)
    time.passes(1.5)
    one.turn()
    assert (fleet.rollout.state, fleet.rollout.cause, fleet.production) == ("ROLLED_BACK", "p99", 1)


def test_another_process_takes_over_once_the_lease_has_ended(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one, two = process("a-1"), process("b-1")
    assert one.turn().leads
    assert not two.turn().leads
    for _ in range(10):
        time.passes(1.0)
        one.turn()
        assert not two.turn().leads
    time.passes(2.9)
    assert not two.turn().leads
    time.passes(0.5)
    assert two.turn().leads
    assert not one.turn().leads  # it only learns of it
    assert fleet.rollout.controller == "b-1"
    assert fleet.states == ["SHADOW 0"]


def _asks(address):
    rule = MetricRule("cost", "prometheus", query="cost{v='$candidate'}", address=address, max=1.0, on="any")
    return replace(PLAN, metrics=(*PLAN.metrics, rule))


def _looks(one, time, count):
    """Let so many looks come due, each of which waits for what it asks."""
    for _ in range(count):
        time.passes(7.0)
        looks = one.office.looks
        fleets.wait_until(lambda: one.turn().rollout is None or one.office.looks > looks, "a look")  # noqa: B023


def test_a_number_of_prometheus_beyond_its_limit_fails_once_it_is_confirmed(fleet, process, time):
    with prometheus(200, vector("1.5")) as (address, asked):
        fleet.roll_out("sound", _asks(address))
        one = process()
        one.turn()
        one.counts(requests=400)
        _looks(one, time, 2)
    assert (fleet.states, fleet.rollout.cause) == (["SHADOW 0", "ABORTED 0"], "cost")
    assert parse_qs(urlsplit(asked[0]).query) == {"query": ["cost{v='2'}"]}


def test_a_source_that_does_not_answer_lets_nothing_go_on(fleet, process, time):
    with prometheus(503, b"busy") as (address, _):
        fleet.roll_out("sound", replace(_asks(address), error_limit=1))
        one = process()
        one.turn()
        one.counts(requests=400)
        _looks(one, time, 2)
    assert (fleet.rollout.state, fleet.rollout.cause) == ("PAUSED", "metric_error")


def test_a_leader_that_died_on_this_machine_is_not_waited_for(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one, two = process("a-1"), process("a-2")
    assert one.turn().leads
    marks = fleet.folder / "machines" / "a" / "loaded" / "r1.0"
    marks.mkdir(parents=True)
    (marks / "a-1").write_text("100")
    assert two.turn().leads


def test_a_rollout_that_takes_the_place_of_another_begins_anew(fleet, process, time):
    fleet.roll_out("nan", PLAN)
    one = process()
    one.turn()
    one.counts(requests=1, errors=1)
    time.passes(1.5)
    one.turn()  # not enough to fail
    fleet.ask("abort")
    fleet.roll_out("sound", PLAN, id="r2")
    one.window = Window(-1)
    passes(one, time)
    assert fleet.states == ["SHADOW 0", "STEP 1"]


def test_a_goodbye_hands_the_lease_over_at_once(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one, two = process("a-1"), process("b-1")
    one.turn()
    one.counts(requests=7)
    one.office.goodbye(Own("r1", one.window, loaded=True))
    assert two.turn().leads
    (left,) = [said for said in published(two.catalog.sight(MODEL).tags, "r1") if said.server == "a-1"]
    assert left.clean
    assert left.counted.arm("canary").requests == 7


def test_what_every_process_counted_adds_up_also_of_those_that_have_gone(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one, two = process("a-1"), process("b-1")
    one.turn()
    two.turn()
    for each in (one, two):
        each.counts(requests=160)  # neither has enough by itself
    time.passes(1.1)
    two.turn()
    del two  # killed
    assert one.turn().rollout.state == "STEP"


def test_two_that_lead_at_once_write_one_transition(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one, two = process("a-1"), process("a-1")  # both believe that they are the one
    one.turn()
    two.turn()
    before = [each.catalog.sight(MODEL) for each in (one, two)]
    for each in (one, two):
        each.counts(requests=400)
    time.passes(1.5)
    for each, sight in zip((one, two), before, strict=True):
        each.office.turn(sight, Own("r1", each.window, loaded=True))
    assert fleet.states == ["SHADOW 0", "STEP 1"]
    assert fleet.rollout.window == 1
    assert (one.office.conflicts, two.office.conflicts) == (0, 1)


def test_somebody_who_moves_production_ends_the_rollout(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    one.turn()
    fleet.catalog.move(MODEL, "production", NUMBERS["shuffled"], kind="promote", actor="else")
    one.turn()
    assert fleet.states == ["SHADOW 0", "SUPERSEDED 0"]
    assert fleet.production == NUMBERS["shuffled"]


def _promoting(fleet, process, time):
    """A rollout whose leader died with PROMOTING written, and nothing moved yet."""
    fleet.roll_out("sound", PLAN)
    one = process()
    passes(one, time)
    one.counts(requests=400)
    one.turn()

    class Killed(Exception):  # noqa: N818 - no error
        pass

    def die(*_arguments, **_options):
        raise Killed

    one.catalog.move = die
    time.passes(1.5)
    with pytest.raises(Killed):
        one.turn()
    assert fleet.states[-1] == "PROMOTING 2"
    assert fleet.production == 1
    time.passes(5)


def test_a_promotion_whose_leader_died_is_gone_on_with(fleet, process, time):
    _promoting(fleet, process, time)
    two = process("b-1")
    two.turn()
    time.passes(5)
    two.turn()
    assert fleet.states[-2:] == ["PROMOTING 2", "BAKING 2"]
    assert fleet.production == NUMBERS["sound"]
    assert fleet.rollout.baseline["n"] == 400


def test_a_promotion_that_was_made_and_not_written_down_is_gone_on_with(fleet, process, time):
    _promoting(fleet, process, time)
    promote(fleet.catalog, fleet.rollout, after=fleet.rollout.event)
    two = process("b-1")
    two.turn()
    time.passes(5)
    two.turn()
    assert fleet.states[-2:] == ["PROMOTING 2", "BAKING 2"]


def test_an_abort_and_a_promotion_at_once_promote_nothing(fleet, process, time):
    _promoting(fleet, process, time)
    rollout = fleet.rollout
    fleet.ask("abort")
    with pytest.raises(ConflictError, match="aborted"):
        promote(fleet.catalog, rollout, after=rollout.event)
    assert fleet.production == 1
    assert fleet.states[-1] == "ABORTED 2"


def test_a_candidate_that_ends_its_processes_fails_at_the_second_death(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    marks = fleet.folder / "machines" / "a" / "loaded" / "r1.0"
    marks.mkdir(parents=True)
    (marks / "a-1").write_text("100")
    one = process("a-3")
    assert one.turn().deaths == 1
    assert fleet.states == ["SHADOW 0"]
    (marks / "a-2").write_text("9" * 19)
    one.turn()
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]
    assert fleet.rollout.cause == "server_died"


def test_deaths_on_another_machine_count_by_what_its_servers_say(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one, two = process("a-1"), process("b-1")
    one.turn()
    marks = fleet.folder / "machines" / "b" / "loaded" / "r1.0"
    marks.mkdir(parents=True)
    (marks / "b-8").write_text("100")
    (marks / "b-9").write_text("9" * 19)
    two.turn()
    assert fleet.rollout.controller == "b-1"  # it does not wait for the lease to end
    two.turn()
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]


def test_a_rollout_of_another_alias_is_none_of_ours(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    one.office._channel = "staging"
    assert one.turn().rollout is None
    assert fleet.rollout.controller == ""


def test_a_rollout_that_nobody_understands_gets_no_traffic(fleet, process, time, caplog):
    version = fleet.catalog.resolve(f"{MODEL}/2")
    fleet.catalog.transition(MODEL, {"id": "r9", "state": "LATER"}, candidate=version, after=None, actor="x")
    one = Process(fleet, "a-1", time)
    sight = one.catalog.sight(MODEL)
    assert one.office.turn(sight, None).rollout is None
    assert one.office.turn(sight, None).rollout is None
    assert len([record for record in caplog.records if "gets no traffic" in record.message]) == 1


def test_an_end_needs_no_candidate_that_is_there(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    one.turn()
    fleet.catalog._backend.writer.delete_version(MODEL, NUMBERS["sound"])
    one.counts(requests=60, errors=60)
    time.passes(1.5)
    one.turn()
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]
