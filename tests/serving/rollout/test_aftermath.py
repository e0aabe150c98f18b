"""What follows a rollout that failed, or whose candidate somebody has put aside."""

from dataclasses import replace

from fleets import MODEL, NUMBERS, wait_until
from offices import PLAN, passes
from prometheus_servers import prometheus, vector

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.verdict import Verdict
from mlx_platform.serving.rollout.carrying import carry_out, production_in, rollout_in
from mlx_platform.serving.rollout.machine import Request, next_state
from mlx_platform.serving.rollout.plan import MetricRule, Step


def candidate(fleet, name="sound"):
    return fleet.catalog.resolve(f"{MODEL}/{NUMBERS[name]}")


def test_a_quarantine_that_the_registry_did_not_take_is_made_up_for_by_whoever_comes(
    fleet, process, time, monkeypatch
):
    def is_locked(*_arguments):
        raise UnavailableError("The registry is locked.")

    fleet.roll_out("nan", PLAN)
    one = process("one-a")
    one.turn()
    one.counts(requests=60, errors=60)
    time.passes(1.5)
    with monkeypatch.context() as broken:
        broken.setattr(one.catalog, "quarantine", is_locked)
        broken.setattr(one.catalog, "summarize", is_locked)
        one.turn()
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]
    assert not candidate(fleet, "nan").quarantined
    other = process("two-a")
    other.turn()
    time.passes(10)
    other.turn()
    found = candidate(fleet, "nan")
    assert "error_rate" in found.quarantined
    assert fleet.catalog.evidence(found)["shadow"].verdict == "fail"
    assert [evidence.verdict for _, evidence in other.evidence] == [Verdict.FAIL]


def test_a_quarantine_that_alone_was_not_taken_is_made_up_for_at_once(fleet, process, time, monkeypatch):
    fleet.roll_out("nan", PLAN)
    one = process()
    one.turn()
    taken = one.catalog.quarantine

    def is_locked_once(*_arguments):
        monkeypatch.setattr(one.catalog, "quarantine", taken)
        raise UnavailableError("The registry is locked.")

    monkeypatch.setattr(one.catalog, "quarantine", is_locked_once)
    one.counts(requests=60, errors=60)
    time.passes(1.5)
    one.turn()
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]
    assert "error_rate" in candidate(fleet, "nan").quarantined
    assert [evidence.verdict for _, evidence in one.evidence] == [Verdict.FAIL]


def test_a_quarantine_that_somebody_has_lifted_stays_lifted(fleet, process, time):
    fleet.roll_out("nan", PLAN)
    one = process()
    one.turn()
    one.counts(requests=60, errors=60)
    time.passes(1.5)
    one.turn()
    fleet.catalog.set_tags(candidate(fleet, "nan"), {"mlx.quarantined": ""})
    for _ in range(3):
        time.passes(10)
        one.turn()
    assert not candidate(fleet, "nan").quarantined


def test_a_candidate_that_somebody_quarantines_is_taken_off_and_never_promoted(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    passes(one, time)
    fleet.catalog.quarantine(candidate(fleet), "wrong answers about cats")
    time.passes(3)
    one.turn()
    assert fleet.states == ["SHADOW 0", "STEP 1", "ABORTED 1"]
    assert fleet.rollout.cause == "quarantined"
    assert "wrong answers about cats" in fleet.rollout.reason
    assert candidate(fleet).quarantined == "wrong answers about cats"
    assert fleet.production == 1


def test_one_that_was_let_past_a_step_by_hand_has_shown_nothing(fleet, process, time):
    fleet.roll_out("sound", PLAN)
    one = process()
    one.turn()
    for _ in range(2):
        sight = fleet.catalog.sight(MODEL)
        rollout = rollout_in(sight)
        request = Request("advance", "ana", "in a hurry")
        decided = next_state(
            rollout, now=rollout.state_since, production=production_in(sight, "production"), request=request
        )
        carry_out(fleet.catalog, decided, after=sight.head)
        one.turn()
    time.passes(11)
    one.turn()
    assert fleet.states[-1] == "PROMOTED 2"
    assert [(e.kind, e.verdict) for _, e in one.evidence] == [("rollout", Verdict.UNDECIDED)]


def test_copies_that_passed_are_evidence_also_where_a_pause_follows(fleet, process, time):
    steps = (PLAN.steps[0], Step("pause", 0.0, max_duration_s=60.0), *PLAN.steps[1:])
    fleet.roll_out("sound", replace(PLAN, steps=steps))
    passes(process(), time)
    assert fleet.rollout.state == "PAUSED"
    assert fleet.catalog.evidence(candidate(fleet))["shadow"].verdict == "pass"


def test_a_step_does_not_end_on_the_look_before_while_the_next_one_waits_for_prometheus(fleet, process, time):
    with prometheus(200, vector("0.5"), delay=0.4) as (address, _):
        rule = MetricRule("cost", "prometheus", query="cost", address=address, max=1.0, on="any")
        slow = (replace(PLAN.steps[0], min_duration_s=5.0), *PLAN.steps[1:])
        fleet.roll_out("sound", replace(PLAN, steps=slow, metrics=(*PLAN.metrics, rule)))
        one = process()
        one.turn()
        one.counts(requests=400)
        time.passes(1.5)
        wait_until(lambda: one.turn() and one.office.looks == 1, "a look that passes")
        time.passes(8.0)
        one.turn()
        assert fleet.states == ["SHADOW 0"]
        wait_until(lambda: one.turn() and one.office.looks == 2, "the look after it")
        assert fleet.states == ["SHADOW 0", "STEP 1"]
