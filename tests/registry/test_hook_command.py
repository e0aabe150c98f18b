import json
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.registry.hook_command import CommandHook
from mlx_platform.registry.outbox import Answer, Message, trial_message

NOW = datetime(2026, 3, 8, 7, tzinfo=UTC)
TRIAL = trial_message("id-1", "a\0ctor\r\n\ud800", NOW)
ENVIRONMENT = {"PATH": os.environ["PATH"], "KEPT": "yes", "MLX_EVENT_OLD": "from an outer hook"}


def run(folder: Path, script: str, *words: str, message: Message = TRIAL, timeout: float = 20) -> Answer:
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    sink = SinkSettings(name="hook", kind="command", command=("./hook.sh", *words))
    return CommandHook(sink, ENVIRONMENT, folder).send(message, timeout=timeout, now=NOW)


def gone(pid: int) -> bool:
    """Whether a process has died; a zombie that nobody waits for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_event_comes_on_standard_input_and_in_variables(tmp_path: Path) -> None:
    answer = run(tmp_path, "cat > event.json; env > env.txt")

    assert answer == Answer(delivered=True, said="exit code 0")
    assert json.loads((tmp_path / "event.json").read_bytes()) == TRIAL.document
    variables = dict(line.split("=", 1) for line in (tmp_path / "env.txt").read_text().splitlines())
    assert variables["MLX_EVENT_ID"] == "id-1"
    assert variables["MLX_EVENT_KIND"] == "test"
    assert variables["MLX_EVENT_FROM_VERSION"] == ""
    assert variables["MLX_EVENT_ACTOR"] == "a\\u0000ctor\\u000d\\u000a?"
    assert variables["KEPT"] == "yes"
    assert "MLX_EVENT_OLD" not in variables


def test_words_reach_the_program_as_they_are(tmp_path: Path) -> None:
    words = ("$(touch canary)", "; touch canary", "a  b", "*")

    assert run(tmp_path, 'printf "%s\\n" "$@" > words.txt', *words).delivered
    assert (tmp_path / "words.txt").read_text().splitlines() == list(words)
    assert not (tmp_path / "canary").exists()


def test_a_program_that_does_not_read_is_no_problem(tmp_path: Path) -> None:
    large = Message("id", {"data": {"reason": "x" * 10**6}})

    assert run(tmp_path, "exit 0", message=large).delivered


def test_an_exit_code_is_a_failure_that_shows_what_was_printed(tmp_path: Path) -> None:
    answer = run(tmp_path, "echo one; printf '\\033[2Jtwo' >&2; exit 3")

    assert answer == Answer(delivered=False, said="exit code 3: one \\u001b[2Jtwo")


def test_a_signal_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "kill -TERM $$").said == f"killed by signal {int(signal.SIGTERM)}"


def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    hook = CommandHook(SinkSettings(name="x", kind="command", command=("./none",)), ENVIRONMENT, tmp_path)

    assert "cannot be started" in hook.send(TRIAL, timeout=5, now=NOW).said


def test_a_timeout_kills_the_program_and_its_children(tmp_path: Path) -> None:
    answer = run(tmp_path, "sleep 600 & echo $! > child.txt; echo started; wait", timeout=1)

    assert not answer.delivered
    assert answer.said == "it was still running after 1 s and was killed: started"
    child = int((tmp_path / "child.txt").read_text())
    deadline = time.monotonic() + 20
    while not gone(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone(child)


def test_a_flood_of_output_is_kept_only_so_far(tmp_path: Path) -> None:
    answer = run(tmp_path, "yes | head -c 5000000; exit 1")

    assert answer.said.startswith("exit code 1: y y y")
    assert len(answer.said) <= 200


def test_endless_output_ends_with_the_timeout(tmp_path: Path) -> None:
    assert "still running" in run(tmp_path, "yes", timeout=0.5).said


def test_a_program_without_output_is_waited_for(tmp_path: Path) -> None:
    assert run(tmp_path, "exec >/dev/null 2>&1; sleep 0.2; exit 4").said == "exit code 4"
    assert "still running" in run(tmp_path, "exec >/dev/null 2>&1; sleep 600", timeout=0.3).said


def test_a_child_left_behind_does_not_hold_the_delivery(tmp_path: Path) -> None:
    answer = run(tmp_path, "sleep 600 & echo $! > child.txt; exit 0")
    child = int((tmp_path / "child.txt").read_text())
    os.kill(child, signal.SIGKILL)

    assert answer == Answer(delivered=True, said="exit code 0")


@pytest.mark.parametrize("command", [(), ("",), ("a", "b\0c")])
def test_no_command_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no command"):
        CommandHook(SinkSettings(name="hook", kind="command", command=command), {}, tmp_path)
