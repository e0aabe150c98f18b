"""Rollout commands beside a real server that follows, as somebody uses them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from projects import Project
from support import RunCommand

from mlx_platform.inference.model import Model
from mlx_platform.workflows.rollouts.rehearsal.load import Load, questions_of

PLAN = """\
steps = [{weight = 30}, {weight = 100, bake = "1s"}]
metrics = [{name = "error_rate", max = 0.1}]
min_requests = 60
min_duration = "1s"
max_duration = "2m"
warmup_requests = 2
warmup = "0s"
look_every = "500ms"
"""


@contextmanager
def following(project: Project) -> Iterator[str]:
    """The address of a server that follows production."""
    command = [sys.executable, "-m", "mlx_platform.cli", "serve", "digits@production", "--follow", "--json"]
    with (project.folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--grpc-port", "-1"],
            cwd=project.folder,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(os.environ, MLX_SERVING_INTRA_OP_THREADS="1"),
        )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == b"}":
                break
        assert lines, (project.folder / "server.log").read_text()
        yield orjson.loads(b"".join(lines))["data"]["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def load_on(project: Project, url: str) -> Load:
    package = project.package(1)
    return Load(url, questions_of(Model.load(package, name="digits", version="1", threads=1)), callers=2)


def test_a_version_goes_to_production_and_a_rehearsal_brings_it_back_and_forth(
    mlx: RunCommand, live: Project, tmp_path: Path
) -> None:
    (live.folder / "plan.toml").write_text(PLAN)
    with following(live) as url:
        with load_on(live, url) as load:
            started = mlx(
                *(
                    "rollout",
                    "start",
                    "digits/2",
                    "--plan",
                    "plan.toml",
                    "--wait",
                    "--timeout",
                    "3m",
                    "--json",
                )
            )
        rehearsed = mlx(
            *("rollout", "rehearse", "digits", "--server", url, "--yes", "--callers", "2", "--within", "1m"),
            *("--report", tmp_path / "report", "--json"),
        )

    assert (started.code, started.data["state"]) == (0, "PROMOTED"), started.err
    assert [answer.status for answer in load.answers if answer.failed] == []
    assert {answer.version for answer in load.answers} == {"1", "2"}
    assert "step 1 of 2 (weight 30 %)" in started.err

    assert rehearsed.code == 0, rehearsed.err
    assert rehearsed.document["verdict"] == "pass"
    ways = {way["name"]: way for way in rehearsed.data["ways"]}
    assert list(ways) == ["mlx rollback", "and back", "fresh process"]
    assert all(way["failed"] == 0 and way["requests"] > 0 and way["seconds"] for way in ways.values())
    assert live.anew().holders("digits")["production"] == 2
    kinds = [event.kind for event in live.anew().journal("digits").moves("production")]
    assert kinds == ["promote", "promote", "rollback", "promote"]
    assert live.anew().journal("digits").rolled_back("production") == {}
    assert (tmp_path / "report" / "report.html").is_file()


def test_a_rehearsal_moves_nothing_before_it_may(
    mlx: RunCommand, live: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rehearse(*words: str) -> int:
        return mlx("rollout", "rehearse", "digits", "--server", "http://127.0.0.1:1", *words).code

    assert rehearse("--yes") == 4  # nothing to go back to
    live.catalog.move("digits", "production", 2, kind="promote", actor="ana")
    assert rehearse("--yes") == 9  # nobody answers
    assert rehearse("--yes", "--within", "soon") == 2
    mlx("rollout", "start", "digits/3")
    assert rehearse("--yes") == 4  # it would end a rollout
    assert live.anew().holders("digits")["production"] == 2
