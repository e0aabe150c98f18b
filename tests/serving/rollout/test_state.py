import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.rollout_settings import RolloutSettings
from mlx_platform.serving.rollout.machine import begin
from mlx_platform.serving.rollout.plan import plan_of
from mlx_platform.serving.rollout.state import ACTIVE, Rollout, State, rollout_of
from mlx_platform.serving.rollout.verdict import (
    MetricVerdict,
    Outcome,
    StepVerdict,
    failure,
    verdict_from_document,
    worst,
)

START = datetime(2026, 12, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def first() -> Rollout:
    return begin(
        plan_of(RolloutSettings()),
        id="r1",
        model="digits",
        stable=3,
        candidate=4,
        stable_digest="a" * 64,
        candidate_digest="b" * 64,
        now=START,
        actor="ann",
        reason="try it",
    )


def wire(rollout: Rollout) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(rollout.document()))
    return document


def test_a_rollout_comes_back_from_its_first_and_its_last_event() -> None:
    begun = first()
    later = replace(
        begun, event=7, state="PAUSED", step=2, window=3, weight=5.0, held_s=12.5, controller="host-1",
        state_since=START + timedelta(hours=1), cause="no_data", reason="none", verdicts=({"name": "p99"},),
        baseline={"n": 5},
    )  # fmt: skip

    assert rollout_of([(7, wire(begun))]) == replace(begun, event=7)
    assert "plan" not in later.document()
    assert rollout_of([(7, wire(begun)), (8, {}), (9, wire(later))]) == replace(later, event=9)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "FLYING"},
        {"state": None},
        {"step": 6},
        {"step": -1},
        {"step": True},
        {"window": 1.5},
        {"weight": 101},
        {"weight": "5"},
        {"shadow": -1},
        {"started_at": "yesterday"},
        {"started_at": "2026-12-01T12:00:00"},
        {"state_since": 5},
        {"held_s": -1},
        {"id": ""},
        {"model": 5},
        {"candidate": "4"},
        {"verdicts": ["x"]},
        {"verdicts": 5},
        {"baseline": []},
        {"baseline": {"n": -1}},
        {"plan": {"steps": []}},
        {"plan": None},
    ],
)
def test_an_event_that_is_none_of_a_rollout_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        rollout_of([(7, {**wire(first()), **changes})])


def test_a_rollout_without_events_is_none() -> None:
    with pytest.raises(IntegrityError):
        rollout_of([])


@pytest.mark.parametrize(
    ("state", "active", "split", "share"),
    [
        ("SHADOW", True, (5.0, 10.0), 5.0),
        ("STEP", True, (5.0, 10.0), 5.0),
        ("PAUSED", True, (5.0, 10.0), 5.0),
        ("PROMOTING", True, (5.0, 10.0), 5.0),
        ("BAKING", True, (0.0, 0.0), 100.0),
        ("PROMOTED", False, (0.0, 0.0), 100.0),
        ("ABORTED", False, (0.0, 0.0), 0.0),
        ("SUPERSEDED", False, (0.0, 0.0), 0.0),
    ],
)
def test_only_before_its_promotion_a_candidate_is_routed_to(
    state: State, active: bool, split: tuple[float, float], share: float
) -> None:
    rollout = replace(first(), state=state, weight=5.0, shadow=10.0)

    assert (rollout.active, rollout.split, rollout.share) == (active, split, share)
    assert (state in ACTIVE) is active


def test_the_order_of_outcomes_has_no_data_behind_inconclusive_and_nothing_is_no_pass() -> None:
    order = [Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.NO_DATA, Outcome.ERROR, Outcome.FAIL]
    for index, outcome in enumerate(order):
        assert worst(order[: index + 1]) is outcome
    assert worst([]) is Outcome.NO_DATA


def test_a_look_comes_back_from_its_document() -> None:
    metrics = (
        MetricVerdict("p99", Outcome.ERROR, "away", None, 1.5, "source", 3, numbers={"p": 0.001234567}),
        MetricVerdict("dry", Outcome.FAIL, "bad", float("inf"), failed=True, dry_run=True),
    )
    look = StepVerdict(Outcome.ERROR, metrics, 4, 2, 47.3)
    again = verdict_from_document(json.loads(json.dumps(look.document())))

    assert again
    assert (again.outcome, again.window, again.look, again.elapsed_s) == (Outcome.ERROR, 4, 2, 47.3)
    assert again.metrics[0] == replace(metrics[0], numbers={"p": 0.00123457})
    assert again.metrics[1] == replace(metrics[1], measured=None)  # JSON has no infinity
    assert again.deciding == again.metrics[0]


@pytest.mark.parametrize(
    "document", [{}, {"metrics": [{}]}, {"metrics": 5}, {"outcome": "great", "metrics": []}]
)
def test_what_is_no_look_is_none(document: dict[str, Any]) -> None:
    assert verdict_from_document(document) is None


def test_a_failure_from_outside_is_one_that_decides() -> None:
    found = failure("server_died", "It ended twice.", window=3)

    assert found.deciding
    assert (found.outcome, found.deciding.name, found.window) == (Outcome.FAIL, "server_died", 3)
