"""The examples do what they say."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from support import Demo, RunCommand, clean_environment

from mlx_platform.core.settings import SinkSettings
from mlx_platform.registry.outbox import trial_message
from mlx_platform.registry.webhook import Webhook

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=folder,
        env=clean_environment(HOME=str(folder)),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_regression_model_goes_through_its_gates_into_production(tmp_path: Path) -> None:
    output = run_example("regression.py", tmp_path)

    assert "progression/1" in output
    assert (tmp_path / "report" / "report.html").is_file()


def test_a_version_answers_inside_the_users_own_process(demo: Demo) -> None:
    output = run_example("embedded.py", demo.folder)

    assert output.startswith("digits/2, digest ")
    assert len(re.findall(r"written \d, read \d with \d+%", output)) == 5


def test_the_pipeline_uses_only_options_that_exist(mlx: RunCommand) -> None:
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())
    scripts = [step["run"] for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    calls = [match for script in scripts for match in re.findall(r"mlx (\w+)([^)|]*)", script)]

    assert {name for name, _ in calls} >= {"resolve", "eval", "promote"}
    for name, rest in calls:
        text = mlx(name, "--help").out
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert option in text, f"mlx {name} {option}"


def test_a_receiver_checks_signatures_and_handles_each_event_once(
    tmp_path: Path,
) -> None:
    secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="  # noqa: S105 - of this test
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "webhook_receiver.py", "--port", "0"],
        cwd=tmp_path,
        env=clean_environment(MLX_WEBHOOK_SECRET=secret),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        url = process.stdout.readline().split()[-1]
        sink = SinkSettings(name="ops", url=url, secret_env="MLX_WEBHOOK_SECRET")  # noqa: S106 - a variable
        webhook = Webhook(sink, {"MLX_WEBHOOK_SECRET": secret})
        now = datetime.now(UTC)
        messages = [trial_message(name, name, now) for name in ("one", "one", "two")]
        answers = [webhook.send(message, timeout=10, now=now) for message in messages]
        old = webhook.send(messages[0], timeout=10, now=now - timedelta(hours=1))
        forged = Webhook(sink, {"MLX_WEBHOOK_SECRET": "other"}).send(messages[0], timeout=10, now=now)
        process.terminate()
        lines = process.stdout.read().splitlines()

    assert [answer.said for answer in answers] == ["204 No Content"] * 3
    assert [answer.said for answer in (old, forged)] == ["401 Unauthorized"] * 2
    assert [json.loads(line)["actor"] for line in lines] == ["one", "two"]
