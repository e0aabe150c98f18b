import pytest
from deciding import decide
from projects import Project
from support import RunCommand

from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.publication import Published
from mlx_platform.serving.rollout.verdict import Outcome


@pytest.fixture
def started(mlx: RunCommand, live: Project) -> Project:
    assert mlx("rollout", "start", "digits/2").code == 0
    return live


def states(project: Project) -> list[str]:
    return [event.evidence["rollout"]["state"] for event in project.anew().rollouts("digits")[-1]]


def test_pause_resume_advance_and_abort_are_one_event_each_with_who_and_why(
    mlx: RunCommand, started: Project
) -> None:
    for command in ("pause", "resume", "advance", "abort"):
        outcome = mlx("rollout", command, "digits", "--reason", f"{command} it", "--actor", "eve", "--json")
        assert (outcome.code, outcome.data["changed"]) == (0, True), outcome.err

    assert states(started) == ["SHADOW", "PAUSED", "SHADOW", "STEP", "ABORTED"]
    events = started.anew().rollouts("digits")[-1]
    assert [(event.actor, event.reason) for event in events[1:]] == [
        ("eve", "pause it"),
        ("eve", "resume it"),
        ("eve", "advance it"),
        ("eve", "abort it"),
    ]
    assert started.anew().holders("digits") == {"production": 1}


@pytest.mark.parametrize("command", ["pause", "abort"])
def test_what_was_decided_already_is_as_good(mlx: RunCommand, started: Project, command: str) -> None:
    mlx("rollout", command, "digits")
    again = mlx("rollout", command, "digits", "--json")

    assert (again.code, again.data["changed"]) == (0, False)
    assert len(states(started)) == 2


def test_nothing_can_be_decided_about_a_rollout_that_ended_or_never_was(
    mlx: RunCommand, live: Project
) -> None:
    never = mlx("rollout", "pause", "digits")
    mlx("rollout", "start", "digits/2")
    mlx("rollout", "abort", "digits")

    assert never.code == 3
    assert mlx("rollout", "pause", "nobody").code == 3
    for command in ("pause", "resume", "advance"):
        assert mlx("rollout", command, "digits").code == 4
    assert states(live) == ["SHADOW", "ABORTED"]


def test_advancing_past_the_last_step_promotes_once_and_waits_for_a_server(
    mlx: RunCommand, started: Project
) -> None:
    for _ in range(3):
        mlx("rollout", "advance", "digits")
    last = mlx("rollout", "advance", "digits", "--reason", "seen enough", "--json")

    assert last.code == 0, last.err
    assert last.data["after"]["state"] == "PROMOTING"
    assert started.anew().holders("digits") == {"canary": 2, "production": 2}
    move = started.anew().journal("digits").last("production")
    assert move is not None
    assert (move.kind, move.actor, move.evidence) == ("promote", "tester", {"rollout": last.data["id"]})


def test_aborting_what_is_promoted_gives_production_back(mlx: RunCommand, started: Project) -> None:
    for _ in range(4):
        mlx("rollout", "advance", "digits")
    aborted = mlx("rollout", "abort", "digits", "--reason", "wrong answers", "--json")

    assert aborted.code == 0, aborted.err
    assert aborted.data["after"]["state"] == "ROLLED_BACK"
    assert states(started)[-2:] == ["PROMOTING", "ROLLED_BACK"]
    assert started.anew().holders("digits") == {"production": 1}
    assert mlx("rollout", "status", "digits").code == 6


def test_a_decision_after_somebody_moved_production_is_a_conflict_and_the_end(
    mlx: RunCommand, started: Project
) -> None:
    started.anew().move("digits", "production", 3, kind="promote", actor="eve")

    outcome = mlx("rollout", "advance", "digits")

    assert outcome.code == 4
    assert "superseded" in outcome.err
    assert states(started) == ["SHADOW", "SUPERSEDED"]
    assert mlx("rollout", "status", "digits").code == 4


@pytest.mark.parametrize(("command", "code"), [("pause", 4), ("resume", 4), ("advance", 4), ("abort", 0)])
def test_what_a_server_had_taken_back_first_is_nothing_that_was_asked_for_but_an_end(
    mlx: RunCommand, started: Project, command: str, code: int
) -> None:
    for _ in range(4):
        mlx("rollout", "advance", "digits")
    baking = decide(started, Outcome.PASS)
    assert baking.state == "BAKING"
    started.anew().move(
        "digits", "production", 1, kind="rollback", actor="server-1", reason="error_rate: 9 of 100",
        evidence={"rollout": baking.id, "cause": "error_rate"},
    )  # fmt: skip

    outcome = mlx("rollout", command, "digits")

    assert outcome.code == code, outcome.err
    assert "rolled back" in (outcome.err if code else outcome.out)
    assert states(started)[-2:] == ["BAKING", "ROLLED_BACK"]
    assert started.anew().resolve("digits/2").quarantined


def test_what_servers_counted_is_kept_for_the_time_after_the_promotion(
    mlx: RunCommand, started: Project
) -> None:
    (begun,) = started.anew().rollouts("digits")[-1]
    identity, counted = begun.evidence["rollout"]["id"], Window(0)
    for _ in range(30):
        counted.arm("stable").observe(0.002, failed=False)
    said = Published("a-1", identity, counted, "2026-12-01T12:00:00Z")
    started.anew().set_model_tags("digits", {said.tag: said.encode()})

    for _ in range(4):  # nothing is counted in the steps that are left at once
        mlx("rollout", "advance", "digits")

    last = started.anew().rollouts("digits")[-1][-1].evidence["rollout"]
    assert (last["state"], last["baseline"]) == ("PROMOTING", counted.arm("stable").document())


def test_a_step_that_passed_meanwhile_is_no_reason_to_refuse(
    mlx: RunCommand, started: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlx_platform.workflows.rollouts import decisions

    looked = []

    def see(context, name):
        seen = real(context, name)
        looked.append(seen.rollout.state)
        if len(looked) == 1:  # a server is faster than whoever decides
            assert decide(started, Outcome.PASS).state == "STEP"
        return seen

    real = decisions.see
    monkeypatch.setattr(decisions, "see", see)
    outcome = mlx("rollout", "pause", "digits", "--json")

    assert outcome.code == 0, outcome.err
    assert looked == ["SHADOW", "STEP"]
    assert states(started) == ["SHADOW", "STEP", "PAUSED"]
