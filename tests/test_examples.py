"""The examples do what they say."""

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from support import Demo, Outcome, RunCommand, clean_environment, run_process

from mlx_platform.core.settings import SinkSettings
from mlx_platform.registry.outbox import trial_message
from mlx_platform.registry.webhook import Webhook

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
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


def verdicts(outcome: Outcome) -> dict[str, str]:
    return {gate["name"]: gate["verdict"] for gate in outcome.data["gates"]}


def test_a_file_classifier_is_good_over_all_files_and_fails_on_perl(tmp_path: Path) -> None:
    run_example("evaluation_magika/prepare.py", tmp_path)
    gates = EXAMPLES / "evaluation_magika" / "gates.toml"

    outcome = run_process(
        ["eval", "./magika", "--data", "files.parquet", "--gates", gates, "--json"], cwd=tmp_path
    )

    assert outcome.code == 5, outcome.err
    assert verdicts(outcome) == {"accuracy >= 90%": "pass", "accuracy >= 80% by label": "fail"}
    slices = {one["key"]["label"]: one["gates"] for one in outcome.data["slices"]}
    assert [gate["verdict"] for gate in slices["perl"]] == ["fail"]
    assert [gate["verdict"] for gate in slices["python"]] == ["pass"]


def test_a_model_of_2015_still_holds_in_each_of_the_years_after_it(tmp_path: Path) -> None:
    run_example("census/prepare.py", tmp_path)
    gates = EXAMPLES / "census" / "gates.toml"

    outcome = run_process(
        ["eval", "./model.skops", "--data", "later.parquet", "--gates", gates, "--json"], cwd=tmp_path
    )

    assert outcome.code == 0, outcome.err
    assert set(verdicts(outcome).values()) == {"pass"}
    assert outcome.data["metrics"]["roc_auc"]["value"] == pytest.approx(0.902, abs=0.003)
    assert [one["key"]["year"] for one in outcome.data["slices"]] == ["2016", "2017", "2018"]


def test_a_wheel_out_of_reach_and_a_changed_file_are_said_plainly(tmp_path: Path) -> None:
    def fetch(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, EXAMPLES / "fetch.py", "mlx-example-wheel==1", *arguments],
            env=clean_environment(XDG_CACHE_HOME=str(tmp_path), PIP_RETRIES="0", **environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    offline = fetch("data.txt", PIP_NO_INDEX="1")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "mlx_example_wheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("data.txt", "text")
        wheel.writestr(
            "mlx_example_wheel-1.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: mlx-example-wheel\nVersion: 1\n",
        )
        wheel.writestr("mlx_example_wheel-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    local = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    digest = hashlib.sha256(b"text").hexdigest()
    taken = fetch(f"data.txt={digest}", **local)
    again = fetch(f"data.txt={'0' * 64}", PIP_NO_INDEX="1")

    assert offline.returncode == 1
    assert "mlx-example-wheel==1 could not be downloaded" in offline.stderr
    assert "Traceback" not in offline.stderr
    assert taken.returncode == 0, taken.stderr
    assert (Path(taken.stdout.strip()) / "data.txt").read_text() == "text"
    assert again.returncode == 1
    assert "its SHA-256 differs" in again.stderr


def test_the_plan_of_a_rollout_can_be_carried_out_and_warns_of_nothing(mlx: RunCommand) -> None:
    outcome = mlx("rollout", "lint", EXAMPLES / "rollout.toml", "--json")

    assert (outcome.code, outcome.document["warnings"]) == (0, [])
    assert [step["kind"] for step in outcome.data["steps"]].count("pause") == 1


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
