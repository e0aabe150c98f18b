"""The examples do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import yaml
from support import Demo, RunCommand, clean_environment

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
