"""The ready-made schedules are what their schedulers read, and what they run is understood by mlx."""

import ast
import configparser
import py_compile
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from mlx_platform.cli.main import create_app

SCHEDULES = Path(__file__).parents[1] / "examples" / "schedules"
FILES = sorted(path.name for path in SCHEDULES.iterdir() if path.is_file() and path.suffix != ".md")


def read(name: str) -> Any:
    return yaml.safe_load((SCHEDULES / name).read_text())


def commands(name: str) -> Iterator[list[str]]:
    """Every mlx command that a schedule runs, as the words behind `mlx`."""
    if name == "kubernetes-cronjob.yaml":
        pod = read(name)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        for container in pod["containers"]:
            assert container["command"][0] == "mlx"
            yield container["command"][1:]
        return
    text = (SCHEDULES / name).read_text()
    if name.endswith(".py"):
        parts = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        text = "\n".join(part for part in parts if isinstance(part, str))
    for found in re.findall(r"(?m)(?:^|[\s/])mlx (consistency .*)$", text):
        yield shlex.split(found)


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".timer")])
def test_the_command_of_a_schedule_is_understood(name: str) -> None:
    found = list(commands(name))

    assert found
    for words in found:
        group = typer.main.get_command(create_app(only=words[0]))
        with group.make_context("mlx", list(words)) as outer:
            _name, command, rest = group.resolve_command(outer, words)
            with command.make_context(words[0], rest, parent=outer) as inner:
                assert inner.params["last"] == "1d"
                assert inner.params["catch_up"] == 7
                assert inner.params["report"]


def test_github_keeps_the_nights_whatever_the_verdict() -> None:
    workflow = read("github-actions.yml")
    (job,) = workflow["jobs"].values()
    saved = [step for step in job["steps"] if "cache/save" in step.get("uses", "")]

    # YAML takes `on` for true.
    assert workflow[True]["schedule"][0]["cron"] == "10 2 * * *"
    assert [step["if"] for step in saved] == ["always()"]
    assert saved[0]["with"]["path"] == "nightly"


def test_gitlab_shows_the_checks_of_a_scheduled_pipeline() -> None:
    (job,) = read("gitlab-ci.yml").values()

    assert job["artifacts"]["reports"]["junit"] == "nightly/junit.xml"
    assert job["cache"]["when"] == job["artifacts"]["when"] == "always"


def test_kubernetes_never_runs_two_at_once_nor_one_again() -> None:
    job = read("kubernetes-cronjob.yaml")

    assert (job["kind"], job["spec"]["concurrencyPolicy"]) == ("CronJob", "Forbid")
    assert job["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_airflow_can_read_its_dag(tmp_path: Path) -> None:
    py_compile.compile(str(SCHEDULES / "airflow_dag.py"), cfile=str(tmp_path / "dag.pyc"), doraise=True)


def test_a_crontab_line_has_five_fields_and_a_command() -> None:
    lines = (SCHEDULES / "mlx-nightly.cron").read_text().splitlines()
    (line,) = [line for line in lines if re.match(r"[0-9*]", line)]

    assert re.fullmatch(r"(?:[0-9*,/-]+ ){5}mlx .*", line)
    assert "%" not in line  # cron would break the line there


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name in ("mlx-nightly.service", "mlx-nightly.timer"):
        text = (SCHEDULES / name).read_text()
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(text)
        (tmp_path / name).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text))
    assert parser["Timer"]["Persistent"] == "true"
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd here")
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.glob("mlx-nightly.*"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "mlx-nightly" not in done.stderr
    assert done.returncode == 0, done.stderr
