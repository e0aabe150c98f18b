"""Whole rollouts: real servers, real requests, real faults. Plans are short, everything else is as ever."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import MODEL, NUMBERS, Fleet, FollowingServer, Load, wait_until

from mlx_platform.registry.catalog import Catalog
from mlx_platform.serving.rollout.plan import MetricRule, Plan, Step
from mlx_platform.serving.rollout.publication import published

SHADOW, HALF = Step("shadow", 100.0, 300, 0.5, 60.0), Step("weight", 50.0, 300, 0.5, 60.0)
PROMOTION = Step("weight", 100.0, bake_s=60.0)
PLAN = Plan(
    steps=(SHADOW, HALF, PROMOTION),
    metrics=(
        MetricRule(name="error_rate", kind="proportion", of="errors", max=0.01),
        MetricRule(name="agreement", kind="proportion", of="disagree", max=0.02, on="shadow"),
    ),
    warmup_requests=5,
    warmup_s=0.0,
    look_every_s=0.2,
)
# Half of the requests go to the candidate for as long as nobody decides otherwise.
HELD = replace(PLAN, steps=(Step("weight", 50.0, 300, 600.0, 900.0), PROMOTION))
# Sound versions are not timed here: what else this machine does would be blamed on them.
TIMED = replace(
    PLAN, steps=(HALF, PROMOTION), metrics=(MetricRule(name="latency", kind="latency_ratio", on="weight"),)
)


@pytest.fixture(scope="module")
def lasting(rollout_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A registry and a server that all tests of this file may use, one after the other."""
    fleet = Fleet.copied(rollout_template, tmp_path_factory.mktemp("lasting") / "fleet")
    fleet.start()
    yield fleet
    fleet.stop()


@pytest.fixture
def server(lasting: Fleet) -> FollowingServer:
    assert lasting.production == 1
    wait_until(lambda: lasting.servers[0].rollout["rollout"] is None, "the rollout before is forgotten")
    return lasting.servers[0]


def _is(fleet: Fleet, *states: str) -> None:
    wait_until(lambda: fleet.rollout.state in states, " or ".join(states))


def _only(load: Load, version: int) -> bool:
    """Whether a version alone answers what is asked from now on."""
    before = load.of(version), sum(load.answers.values())
    wait_until(lambda: sum(load.answers.values()) >= before[1] + 30, "thirty more answers")
    after = load.of(version), sum(load.answers.values())
    return after[0] - before[0] == after[1] - before[1]


def test_a_sound_version_is_promoted_and_an_abort_takes_it_back(lasting, server):
    with Load(server) as load:
        lasting.roll_out("sound", PLAN, id="sound")
        _is(lasting, "BAKING", "ABORTED", "PAUSED")
        assert lasting.states == ["SHADOW 0", "STEP 1", "PROMOTING 2", "BAKING 2"]
        assert lasting.production == NUMBERS["sound"]
        wait_until(lambda: _only(load, NUMBERS["sound"]), "all requests go to the new version")
        lasting.ask("abort", "changed my mind")
        wait_until(lambda: _only(load, 1), "all requests go back")
    assert lasting.rollout.state == "ROLLED_BACK"
    assert lasting.production == 1
    assert load.wrong == {}
    assert load.failed == []


@pytest.mark.parametrize(
    ("version", "cause"),
    [
        ("raises", "error_rate"),
        ("nan", "error_rate"),
        ("sickly", "error_rate"),
        ("shuffled", "agreement"),
    ],
)
def test_an_ill_version_fails_in_shadow_and_answers_nobody(lasting, server, version, cause):
    with Load(server) as load:
        lasting.roll_out(version, PLAN, id=f"shadow-{version}")
        _is(lasting, "ABORTED", "PAUSED", "BAKING")
        assert _only(load, 1)
    assert (lasting.states, lasting.rollout.cause) == (["SHADOW 0", "ABORTED 0"], cause)
    assert load.of(NUMBERS[version]) == 0
    assert load.wrong == {}
    ref = f"{MODEL}/{NUMBERS[version]}"
    wait_until(lambda: cause in lasting.catalog.resolve(ref).quarantined, "it is quarantined")
    assert lasting.production == 1


@pytest.mark.parametrize(
    ("version", "plan", "cause"), [("nan", HELD, "error_rate"), ("slow", TIMED, "latency")]
)
def test_an_ill_version_that_answers_is_stopped_for_good(lasting, server, version, plan, cause):
    # One of the tests above may have quarantined it, and that alone would end a rollout.
    lasting.catalog.set_tags(lasting.catalog.resolve(f"{MODEL}/{NUMBERS[version]}"), {"mlx.quarantined": ""})
    with Load(server) as load:
        lasting.roll_out(version, plan, id=f"weight-{version}")
        _is(lasting, "ABORTED", "PAUSED", "BAKING")
        wait_until(lambda: _only(load, 1), "nobody is sent to it any more")
    assert (lasting.states, lasting.rollout.cause) == (["STEP 0", "ABORTED 0"], cause)
    assert 0 < load.of(NUMBERS[version]) < 500
    assert load.failed == []


def test_without_requests_nothing_goes_on(lasting, server):
    lasting.roll_out("sound", replace(PLAN, steps=(replace(SHADOW, max_duration_s=1.5), HALF)), id="silence")
    _is(lasting, "PAUSED", "ABORTED", "STEP")
    assert (lasting.states, lasting.rollout.cause) == (["SHADOW 0", "PAUSED 0"], "no_data")
    lasting.ask("abort")


def test_a_rollout_ends_where_somebody_moves_production(lasting, server):
    with Load(server) as load:
        lasting.roll_out("sound", HELD, id="moved")
        wait_until(lambda: load.of(NUMBERS["sound"]) > 10, "the candidate answers")
        lasting.catalog.move(MODEL, "production", NUMBERS["shuffled"], kind="promote", actor="else")
        wait_until(lambda: _only(load, NUMBERS["shuffled"]), "everybody gets what production is")
        _is(lasting, "SUPERSEDED")
        lasting.catalog.move(MODEL, "production", 1, kind="rollback", actor="else")
        wait_until(lambda: _only(load, 1), "and what it was before")
    assert load.wrong == {}
    assert load.failed == []


def test_without_a_registry_the_stable_version_answers(lasting, server):
    database, away = lasting.folder / "mlx.db", lasting.folder / "away.db"
    with Load(server) as load:
        lasting.roll_out("sound", HELD, id="away")
        wait_until(lambda: load.of(NUMBERS["sound"]) > 10, "the candidate answers")
        database.rename(away)
        try:
            wait_until(lambda: _only(load, 1), "the stable version answers everything")
            assert not server.rollout.get("somebody_leads")  # or it knows of no rollout any more
        finally:
            away.rename(database)
        before = load.of(NUMBERS["sound"])
        wait_until(lambda: load.of(NUMBERS["sound"]) > before + 10, "the candidate answers again")
        lasting.ask("abort")
    assert lasting.states == ["STEP 0", "ABORTED 0"]
    assert load.wrong == {}
    assert load.failed == []


def test_a_killed_server_goes_on_where_it_was_until_it_is_killed_again(fleet):
    server = fleet.start()
    with Load(server) as load:
        fleet.roll_out("sound", HELD)
        wait_until(lambda: load.of(NUMBERS["sound"]) > 50, "the candidate answers")
        wait_until(lambda: _counted(fleet) > 20, "the server says what it counted")
        server.stop(signal.SIGKILL)
    counted, began = _counted(fleet), fleet.rollout
    second = fleet.start()
    with Load(second) as load:
        wait_until(lambda: load.of(NUMBERS["sound"]) > 30, "the candidate answers again")
        wait_until(lambda: _counted(fleet) > counted, "what is counted adds up")
        now = fleet.rollout
        assert (now.state, now.window, now.step_since) == ("STEP", began.window, began.step_since)
        assert second.rollout["deaths"] == 1
        second.stop(signal.SIGKILL)
    fleet.start()
    _is(fleet, "ABORTED")
    assert fleet.rollout.cause == "server_died"
    assert fleet.production == 1


def test_another_server_takes_over_from_a_killed_one(fleet):
    servers = fleet.start(), fleet.start()
    with Load(servers[0], seed=1) as first, Load(servers[1], seed=2) as second:
        fleet.roll_out("sound", HELD)
        wait_until(lambda: all(load.of(NUMBERS["sound"]) > 20 for load in (first, second)), "both share")
        wait_until(lambda: len(published(fleet.catalog.sight(MODEL).tags, "r1")) == 2, "both say so")
        leader = next(index for index, server in enumerate(servers) if server.rollout["leads"])
        servers[leader].stop(signal.SIGKILL)
        other = servers[1 - leader]
        wait_until(lambda: other.rollout["leads"], "the other one leads")
        load = (first, second)[1 - leader]
        before = load.of(NUMBERS["sound"])
        wait_until(lambda: load.of(NUMBERS["sound"]) > before + 10, "the candidate answers")
        fleet.ask("advance")
        _is(fleet, "BAKING")
        wait_until(lambda: _only(load, NUMBERS["sound"]), "it is promoted")
        assert load.wrong == {}
        assert load.failed == []
    assert other.stop() == 0


def _counted(fleet: Fleet) -> int:
    """What all processes say that the candidate has answered."""
    said = published(Catalog(fleet.settings).sight(MODEL).tags, fleet.rollout.id)
    return sum(process.counted.arm("canary").requests for process in said)
