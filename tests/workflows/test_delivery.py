import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from projects import Project
from receivers import receiving
from support import RunCommand, clean_environment, run_process

from mlx_platform.core.files import file_lock
from mlx_platform.registry.courier import Courier

COMMAND = [sys.executable, "-m", "mlx_platform.cli", "events", "deliver"]


@pytest.fixture
def moved(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.folder)
    for to in (1, 2, 3):
        assert project.anew().move("digits", "staging", to, kind="promote", actor="tester")
    return project


def write(project: Project, *tables: str) -> None:
    (project.folder / "mlx.toml").write_text("\n".join(tables))


def write_hook(project: Project, script: str, extra: str = "") -> None:
    path = project.folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    write(project, f'[[events.sinks]]\nname = "hook"\nkind = "command"\ncommand = ["./hook.sh"]\n{extra}')


def break_journal(project: Project) -> None:
    with closing(sqlite3.connect(project.database)) as database, database:
        database.execute(
            "UPDATE model_version_tags SET value = value || ' ' WHERE key = 'mlx.event' AND version = 3"
        )


def test_everything_is_delivered_and_then_nothing_is_left(moved: Project, mlx: RunCommand) -> None:
    with receiving() as receiver:
        write(moved, receiver.toml())
        first = mlx("events", "deliver", "--json")
        second = mlx("events", "deliver", "digits", "--sink", "ops")

    assert (first.code, second.code) == (0, 0)
    assert first.data["deliveries"][0]["delivered"] == [1, 2, 3]
    assert "Nothing was left to deliver." in second.out
    assert receiver.numbers == [1, 2, 3]


def test_what_cannot_be_delivered_ends_with_9_and_says_what_the_receiver_said(
    moved: Project, mlx: RunCommand
) -> None:
    with receiving(500, body=b"out of order") as receiver:
        write(moved, receiver.toml())
        outcome = mlx("events", "deliver", "--wait", "0", "--json")

    assert outcome.code == 9
    error = outcome.document["error"]
    assert error["message"].startswith("3 events could not be delivered.")
    assert "500 Internal Server Error: out of order" in error["message"]
    assert error["deliveries"][0]["pending"] == [1, 2, 3]


def test_a_failure_is_tried_again_while_there_is_time(moved: Project, mlx: RunCommand) -> None:
    with receiving(429, 204, headers={"Retry-After": "0"}) as receiver:
        write(moved, receiver.toml())
        outcome = mlx("events", "deliver", "--json")

    assert outcome.code == 0
    assert receiver.numbers == [1, 1, 2, 3]


def test_the_event_that_is_parked_now_ends_with_9_and_later_with_a_warning(
    moved: Project, mlx: RunCommand
) -> None:
    with receiving(404, 204) as receiver:
        write(moved, receiver.toml(extra="max_attempts = 1"))
        first = mlx("events", "deliver")
        second = mlx("events", "deliver")

    assert first.code == 9
    assert "1 event could not be delivered" in first.err
    assert second.code == 0
    assert "warning: 1 event parked" in second.err


def test_one_sink_that_fails_does_not_hold_the_others(moved: Project, mlx: RunCommand) -> None:
    with receiving(500) as broken, receiving() as sound:
        write(moved, broken.toml("broken"), sound.toml("sound"))
        assert mlx("events", "deliver", "--wait", "0").code == 9

    assert sound.numbers == [1, 2, 3]


def test_a_secret_that_is_missing_stops_its_own_sink_only(moved: Project, mlx: RunCommand) -> None:
    with receiving() as receiver, receiving() as other:
        write(moved, receiver.toml("b", 'secret_env = "MLX_WEBHOOK_SECRET"'), other.toml("a"))
        outcome = mlx("events", "deliver", "--json")

    assert outcome.code == 2
    assert "'b' needs the environment variable MLX_WEBHOOK_SECRET, which is not set." in outcome.err
    assert outcome.document["command"] == "events deliver"
    assert outcome.document["error"]["deliveries"][0]["delivered"] == [1, 2, 3]
    assert (receiver.requests, other.numbers) == ([], [1, 2, 3])


def test_a_sink_that_another_process_is_at_does_not_hold_the_others(
    moved: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Courier.deliver, "__kwdefaults__", {**Courier.deliver.__kwdefaults__, "patience": 0})
    lock = moved.database.with_name(f".{moved.database.name}.outbox.a.lock")
    with receiving() as receiver, file_lock(lock, timeout=1, purpose="a test"):
        write(moved, receiver.toml("a"), receiver.toml("b"))
        outcome = mlx("events", "deliver")

    assert outcome.code == 9
    assert "a: Another process is still delivering to a" in outcome.err
    assert "3 events delivered to the rest." in outcome.err
    assert receiver.numbers == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sink", "opps"], 2, "Did you mean 'ops'?"),
        (["digts"], 3, "Did you mean 'digits'?"),
        (["../x"], 2, "'../x'"),
    ],
)
def test_what_is_not_there_is_said(
    moved: Project, mlx: RunCommand, arguments: list[str], code: int, words: str
) -> None:
    write(moved, '[[events.sinks]]\nname = "ops"\nurl = "https://example.com"')
    outcome = mlx("events", "deliver", *arguments)

    assert outcome.code == code
    assert words in outcome.err


def test_without_sinks_there_is_nothing_to_run(moved: Project, mlx: RunCommand) -> None:
    outcome = mlx("events", "deliver")

    assert outcome.code == 2
    assert "[[events.sinks]]" in outcome.err


def test_an_unknown_key_of_a_sink_is_an_error(moved: Project, mlx: RunCommand) -> None:
    write(moved, '[[events.sinks]]\nname = "ops"\nsecret = "x"')
    outcome = mlx("events", "status")

    assert outcome.code == 2
    assert "events.sinks.0.secret" in outcome.err
    assert "Did you mean 'secret_env'?" in outcome.err


def test_of_a_broken_journal_nothing_is_told_and_the_others_are(moved: Project, mlx: RunCommand) -> None:
    from mlx_platform.registry.version import Lineage

    moved.catalog.register("other", moved.package(1), Lineage())
    moved.anew().move("other", "staging", 1, kind="promote", actor="tester")
    break_journal(moved)
    with receiving() as receiver:
        write(moved, receiver.toml())
        outcome = mlx("events", "deliver")

    assert outcome.code == 10
    assert "The journal of digits is broken" in outcome.err
    assert [request.data["model"] for request in receiver.requests] == ["other"]


def test_a_courier_that_is_killed_after_telling_tells_it_again_with_the_same_id(moved: Project) -> None:
    write_hook(
        moved, "cat >> told.txt; echo >> told.txt; [ -e killed ] || { touch killed; kill -KILL $PPID; }"
    )
    first = run_process(["events", "deliver"], cwd=moved.folder)
    second = run_process(["events", "deliver"], cwd=moved.folder)

    told = [json.loads(line)["data"] for line in (moved.folder / "told.txt").read_text().splitlines()]
    assert (first.code, second.code) == (-signal.SIGKILL, 0)
    assert [event["number"] for event in told] == [1, 1, 2, 3]
    assert told[0] == told[1]


def test_a_command_that_fails_is_run_again(moved: Project, mlx: RunCommand) -> None:
    write_hook(moved, 'echo "$MLX_EVENT_NUMBER" >> told.txt; [ "$(wc -l < told.txt)" -gt 1 ] || exit 3')

    first = mlx("events", "deliver", "--wait", "0")
    second = mlx("events", "deliver", "--now")

    assert (first.code, second.code) == (9, 0)
    assert "exit code 3" in first.err
    assert (moved.folder / "told.txt").read_text().split() == ["1", "1", "2", "3"]


def test_processes_that_deliver_at_once_tell_each_event_once(moved: Project) -> None:
    with receiving() as receiver:
        write(moved, receiver.toml())
        running = [
            subprocess.Popen(COMMAND, cwd=moved.folder, env=clean_environment(), stdout=subprocess.DEVNULL)
            for _ in range(3)
        ]
        codes = [process.wait(120) for process in running]

    assert codes == [0, 0, 0]
    assert receiver.numbers == [1, 2, 3]


def test_a_watcher_delivers_what_comes_and_tells_each_trouble_once(moved: Project) -> None:
    with receiving() as receiver:
        write(moved, receiver.toml())
        with subprocess.Popen(
            [*COMMAND, "--watch", "--every", "0.1"],
            cwd=moved.folder,
            env=clean_environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stderr
            lines = [process.stderr.readline()]
            moved.anew().move("digits", "staging", 1, kind="promote", actor="tester")
            lines.append(process.stderr.readline())
            break_journal(moved)
            lines.append(process.stderr.readline())
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()

    assert lines[0] == "ops was told of digits: event 1, 2, 3\n"
    assert lines[1] == "ops was told of digits: event 4\n"
    assert "journal of digits is broken" in lines[2]
    assert rest == "error: Interrupted.\n"
    assert process.returncode == 130
    assert receiver.numbers == [1, 2, 3, 4]


def test_a_lock_lies_beside_the_database(moved: Project, mlx: RunCommand) -> None:
    write_hook(moved, "exit 0")
    mlx("events", "deliver")

    assert Path(moved.folder / ".mlx.db.outbox.hook.lock").is_file()
