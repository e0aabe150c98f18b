import json
import math
import os
import pty
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from deciding import decide
from projects import Project
from support import RunCommand

from mlx_platform.serving.rollout.carrying import rollout_in
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.lease import LEASE, Lease
from mlx_platform.serving.rollout.lookbook import Lookbook
from mlx_platform.serving.rollout.publication import LOOK, Published, look_tag
from mlx_platform.serving.rollout.state import Rollout
from mlx_platform.serving.rollout.verdict import MetricVerdict, Outcome, StepVerdict

_INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mlx_platform.cli.entry import run
run()
"""


@pytest.fixture
def started(mlx: RunCommand, live: Project) -> Project:
    assert mlx("rollout", "start", "digits/2", "--reason", "better").code == 0
    return live


def going(project: Project) -> Rollout:
    rollout = rollout_in(project.anew().sight("digits"))
    assert rollout is not None
    return rollout


def counted(rollout: Rollout, *, errors: int = 3) -> Window:
    window = Window(rollout.window)
    for arm, slow in (("stable", 0.002), ("shadow", 0.004)):
        for number in range(100):
            window.arm(arm).observe(slow, failed=number < errors and arm == "shadow")
    window.arm("shadow").compare(["label"])
    window.arm("shadow").compare([])
    window.arm("stable").outcome("clicked", 1)
    return window


def publish(project: Project, rollout: Rollout) -> StepVerdict:
    """What two servers leave in the registry, one of which leads."""
    window = counted(rollout)
    metric = MetricVerdict("error_rate", Outcome.INCONCLUSIVE, "3.00% errors.", 0.03, 0.01, "too_few")
    verdict = StepVerdict(Outcome.INCONCLUSIVE, (metric,), rollout.window, 2, 40.0)
    at = "2026-12-01T04:00:00Z"
    one = Published("host-a", rollout.id, window, at, loaded=True)
    two = Published("host-b", rollout.id, Window(rollout.window), at, problem="There is no room.")
    project.catalog.set_model_tags(
        "digits",
        {
            one.tag: one.encode(),
            two.tag: two.encode(),
            LEASE: Lease(rollout.id, "host-a", 7).encode(),
            LOOK: look_tag(rollout, verdict, at),
        },
    )
    return verdict


def test_a_rollout_that_goes_on_has_no_verdict_and_says_what_comes_next(
    mlx: RunCommand, started: Project
) -> None:
    publish(started, going(started))

    page, document = mlx("rollout", "status", "digits"), mlx("rollout", "status", "digits", "--json")

    data = document.data
    assert (page.code, document.document["verdict"]) == (0, None)
    assert (data["state"], data["step"], data["shadow"], data["leader"]) == ("SHADOW", 1, 100, "host-a")
    assert data["arms"]["shadow"]["requests"] == 100
    assert data["arms"]["shadow"]["errors"] == 3
    assert data["arms"]["shadow"]["disagreed"] == 1
    assert data["arms"]["stable"]["outcomes"]["clicked"] == {"count": 1, "mean": 1, "variance": 0}
    assert math.isclose(data["arms"]["stable"]["p99_seconds"], 0.002, rel_tol=0.05)
    assert data["metrics"][0]["outcome"] == "inconclusive"
    assert [server["loaded"] for server in data["servers"]] == [True, False]
    assert "weight 5 % once every metric passes" in page.out
    assert "error_rate   undecided   3.00%      < 1 %" in page.out
    assert "host-b does not have the candidate: There is no room." in page.err


def test_without_servers_somebody_is_told_to_start_one(mlx: RunCommand, started: Project) -> None:
    assert "mlx serve digits@production --follow" in mlx("rollout", "status", "digits").err


def test_every_end_and_every_wait_has_its_exit_code(mlx: RunCommand, started: Project) -> None:
    def ends() -> tuple[int, str | None]:
        outcome = mlx("rollout", "status", "digits", "--json")
        return outcome.code, outcome.document["verdict"]

    assert decide(started, Outcome.NO_DATA, seconds=4000).cause == "no_data"
    assert ends() == (7, "undecided")
    assert mlx("rollout", "status", "digits", "--ok-on", "paused").code == 0
    assert mlx("rollout", "status", "digits", "--watch").code == 7
    assert decide(started, Outcome.FAIL).state == "ABORTED"
    assert ends() == (6, "fail")
    assert mlx("rollout", "status", "digits", "--ok-on", "paused").code == 6
    data = mlx("rollout", "status", "digits", "--json").data
    assert data["metrics"][0]["measured"] == pytest.approx(0.0667)
    assert (data["active"], data["next"]) == (False, None)


def test_waiting_ends_with_8_when_the_time_is_over(mlx: RunCommand, started: Project) -> None:
    outcome = mlx("rollout", "status", "digits", "--timeout", "300ms", "--every", "0.1", "--json")

    assert (outcome.code, outcome.document["exit_code"]) == (8, 8)
    assert "still going on after 0.3 s" in outcome.err


def test_start_waits_for_the_end_and_tells_each_change(mlx: RunCommand, live: Project) -> None:
    plan = live.folder / "short.toml"
    plan.write_text("steps = [{shadow = 50}]\n")
    changes = iter([lambda: None, lambda: decide(live, Outcome.PASS)])

    def sleep(_seconds: float) -> None:
        next(changes)()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mlx_platform.workflows.rollouts.waiting.time.sleep", sleep)
        outcome = mlx("rollout", "start", "digits/2", "--plan", plan, "--wait", "--json")

    assert outcome.code == 0, outcome.err
    assert (outcome.document["command"], outcome.data["state"]) == ("rollout start", "COMPLETED")
    assert "step 1 of 1 (shadow 50 %)" in outcome.err


@pytest.mark.parametrize("words", [["--ok-on", "aborted"], ["--timeout", "soon"]])
def test_what_nobody_can_wait_for_is_a_usage_error(
    mlx: RunCommand, started: Project, words: list[str]
) -> None:
    assert mlx("rollout", "status", "digits", *words).code == 2


def test_the_report_draws_shares_and_arms_and_the_verdict_of_every_look(
    mlx: RunCommand, started: Project, tmp_path: Path
) -> None:
    rollout = going(started)
    verdict = publish(started, rollout)
    book = Lookbook(started.settings.path(started.settings.cache.dir) / "rollouts")
    for second in (10, 20, 40):
        at = f"2026-12-01T04:00:{second}Z"
        arms = counted(rollout, errors=second // 10).document()
        book.add(rollout.id, {"at": at, "state": "SHADOW", "step": 0, "arms": arms, **verdict.document()})

    outcome = mlx("rollout", "status", "digits", "--report", tmp_path / "report")

    assert outcome.code == 0, outcome.err
    html = (tmp_path / "report" / "report.html").read_text()
    for title in ("Share of the traffic", "Errors", "Latency, P99", "Copies whose answers differ", "Looks"):
        assert f"<h2>{title}</h2>" in html
    assert html.count("04:00:") >= 3
    cases = ET.parse(tmp_path / "report" / "junit.xml").getroot().findall("testcase")  # noqa: S314 - ours
    assert [case.get("name") for case in cases] == ["error_rate < 1 %"]
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert document["data"]["id"] == rollout.id


def test_ctrl_c_ends_the_watching_and_says_that_the_rollout_goes_on(started: Project) -> None:
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTIBLE, "rollout", "status", "digits", "--watch", "--every", "0.1"],
        cwd=started.folder,
        stdin=terminal,
        stdout=terminal,
        stderr=subprocess.PIPE,
        env=dict(os.environ, TERM="xterm", COLUMNS="120", LINES="50"),
    )
    os.close(terminal)
    shown = b""
    while b"digits/2: step 1 of 5" not in shown:
        shown += os.read(main, 65536)
    process.send_signal(signal.SIGINT)
    try:
        while chunk := os.read(main, 65536):
            shown += chunk
    except OSError:
        pass  # the other end is closed
    assert process.stderr is not None
    said = process.stderr.read().decode()
    process.stderr.close()
    os.close(main)

    assert process.wait(20) == 130
    assert "The rollout of digits goes on." in said
    assert b"\x1b[?1049h" in shown  # a screen of its own
    assert going(started).state == "SHADOW"


def test_history_tells_every_rollout_and_each_transition_of_one(mlx: RunCommand, started: Project) -> None:
    first = going(started)
    mlx("rollout", "pause", "digits", "--reason", "lunch", "--actor", "eve")
    mlx("rollout", "abort", "digits")
    mlx("rollout", "start", "digits/3")

    every = mlx("rollout", "history", "digits", "--json").data["rollouts"]
    one = mlx("rollout", "history", "digits", "--id", first.id[:4])

    assert [(each["version"], each["state"], each["active"]) for each in every] == [
        (3, "SHADOW", True),
        (2, "ABORTED", False),
    ]
    assert one.code == 0
    assert "by hand: lunch" in one.out
    assert one.out.count("1 of 5") == 3
    assert mlx("rollout", "history", "digits", "--id", "zz").code == 3
    assert mlx("rollout", "history", "nobody").code == 3


def test_a_rollout_of_another_mlx_is_listed_and_not_understood(mlx: RunCommand, live: Project) -> None:
    document = {"id": "future", "channel": "production", "state": "TELEPORTING", "plan": {"warp": 9}}
    live.catalog.transition(
        "digits", document, candidate=live.catalog.resolve("digits/2"), after=None, actor="eve"
    )

    every = mlx("rollout", "history", "digits", "--json").data["rollouts"]

    assert [(each["id"], each["version"], each["state"]) for each in every] == [("future", 2, None)]
    assert mlx("rollout", "status", "digits").code == 10
