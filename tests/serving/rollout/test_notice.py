"""What a rollout does by itself is told to the sinks as well."""

import sys
from dataclasses import replace

from fleets import MODEL, wait_until
from offices import PLAN, Process

from mlx_platform.core.settings import EventSettings, SinkSettings


def _told(path):
    return path.read_text() if path.exists() else ""


def _sink(program):
    command = (sys.executable, "-c", program)
    return EventSettings(
        sinks=(SinkSettings(name="book", kind="command", command=command, start="beginning"),)
    )


def _fails(one, time):
    one.turn()
    one.counts(requests=60, errors=60)
    time.passes(1.5)
    one.turn()


def test_an_abort_reaches_a_sink_without_any_command(fleet, time):
    fleet.roll_out("nan", PLAN)
    path = fleet.folder / "told"
    program = f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read())"
    one = Process(fleet, "a-1", time, replace(fleet.settings, events=_sink(program)))
    _fails(one, time)
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]
    wait_until(lambda: "ABORTED" in _told(path), "the sink is told")


def test_a_sink_that_fails_changes_nothing_and_is_logged(fleet, time, caplog):
    fleet.roll_out("nan", PLAN)
    one = Process(fleet, "a-1", time, replace(fleet.settings, events=_sink("raise SystemExit(1)")))
    _fails(one, time)
    assert fleet.states == ["SHADOW 0", "ABORTED 0"]
    wait_until(lambda: f"has not been told of every move of {MODEL}" in caplog.text, "it is logged")
