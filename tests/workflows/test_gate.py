import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from projects import Project, evidence_of, transit
from support import RunCommand, clean_environment

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.version import ARCHIVED, QUARANTINED
from mlx_platform.workflows.gate import gate
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.rollback import rollback

ACCURACY = {
    "name": "accuracy >= 0.9",
    "verdict": "pass",
    "shown": "0.9500 [0.9300, 0.9700]",
    "measured": 0.95,
    "threshold": 0.9,
}


def record(project: Project, ref: str, verdict: Verdict = Verdict.PASS, kind: str = "evaluation") -> None:
    version = project.catalog.resolve(ref)
    evidence = evidence_of(version, kind=kind, verdict=verdict)
    gates = [ACCURACY | {"verdict": str(verdict)}]
    project.catalog.record(version, replace(evidence, numbers={**evidence.numbers, "gates": gates}))


def test_what_is_there_and_what_is_missing_is_told_with_the_commands(project: Project) -> None:
    result = gate(project.context, "digits/2", to="production")

    assert (result.exit_code, result.data["allowed"]) == (7, False)
    assert {one["name"]: one["verdict"] for one in result.data["gates"]} == {
        "evaluation": "undecided",
        "quarantine": "pass",
        "self-check": "pass",
    }
    assert result.report.next_steps == ("mlx eval digits/2 --data TEST.parquet --gates gates.toml",)
    (by_hand,) = [fact.value for fact in result.report.facts if fact.label == "by hand"]
    assert by_hand == "mlx promote digits/2 --to production --override evaluation --reason WHY"
    assert project.catalog.holders("digits") == {}


def test_evidence_that_passed_shows_its_thresholds_beside_what_was_measured(project: Project) -> None:
    record(project, "digits/2")

    result = gate(project.context, "digits/2", to="production")

    assert (result.verdict, result.data["commands"]) == (Verdict.PASS, [])
    inner = next(check for check in result.report.checks if check.name == "evaluation: accuracy")
    assert (inner.threshold, inner.measured) == (">= 0.9", "0.9500 [0.9300, 0.9700]")
    answered = result.data["gates"][0]["evidence"]["gates"][0]
    assert (answered["measured"], answered["threshold"]) == (0.95, 0.9)
    assert result.report.next_steps == ("mlx promote digits/2 --to production",)


def test_a_failure_weighs_more_than_what_is_missing(project: Project) -> None:
    policy = {"production": PromotionSettings(needs=("evaluation", "consistency"))}
    object.__setattr__(project.context, "settings", replace(project.settings, promotion=policy))
    record(project, "digits/2", Verdict.FAIL)

    result = gate(project.context, "digits/2", to="production")

    assert result.exit_code == 5
    assert "evaluation (fail), consistency (no evidence)" in result.report.summary


def test_an_alias_without_a_policy_asks_for_a_sound_package_only(project: Project) -> None:
    result = gate(project.context, "digits/2", to="canary")

    assert result.verdict is Verdict.PASS
    assert [one["name"] for one in result.data["gates"]] == ["quarantine", "self-check"]


@pytest.mark.parametrize(("tag", "name"), [(ARCHIVED, "archived"), (QUARANTINED, "quarantine")])
def test_what_speaks_against_the_version_itself_fails(project: Project, tag: str, name: str) -> None:
    project.catalog.set_tags(project.catalog.resolve("digits/2"), {tag: "true"})

    result = gate(project.context, "digits/2", to="staging")

    assert result.exit_code == 5
    assert {one["name"] for one in result.data["gates"] if one["verdict"] == "fail"} == {name}
    assert bool(result.data["by_hand"]) is (tag == QUARANTINED)


def test_a_rollback_speaks_against_the_version_for_that_alias_only(project: Project) -> None:
    for number in (1, 2):
        promote(project.context, f"digits/{number}", to="production", override=("all",), reason="x")
    rollback(project.context, "digits", reason="wrong answers")
    record(project, "digits/2")

    result = gate(project.context, "digits/2", to="production")

    assert result.exit_code == 5
    quarantine = next(one for one in result.data["gates"] if one["name"] == "quarantine")
    assert "rolled back from production on" in quarantine["message"]
    assert quarantine["message"].endswith("by tester: wrong answers.")
    assert quarantine["override"] == ["quarantine"]
    assert gate(project.context, "digits/2", to="staging").verdict is Verdict.PASS


def test_the_rows_of_the_holders_evaluation_are_named(project: Project) -> None:
    holder = project.catalog.resolve("digits/1")
    evidence = replace(evidence_of(holder), parameters={"data": "data/test.parquet"})
    project.catalog.record(holder, evidence)
    promote(project.context, "digits/1", to="production")

    result = gate(project.context, "digits/2", to="production")

    assert result.data["commands"] == ["mlx eval digits/2 --data data/test.parquet --gates gates.toml"]


def test_a_holder_is_judged_like_everybody_else(project: Project) -> None:
    promote(project.context, "digits/2", to="production", override=("all",), reason="x")

    assert gate(project.context, "digits/2", to="production").exit_code == 7
    record(project, "digits/2")
    result = gate(project.context, "digits/2", to="production")
    assert result.report.summary == "digits/2 holds production, and may."
    assert result.report.next_steps == ()


@pytest.mark.parametrize(
    ("ref", "to", "error"),
    [
        ("digits/9", "production", NotFoundError),
        ("digits", "production", UsageError),
        ("digits/2", "prodution", UsageError),
        ("digits/2", "latest", UsageError),
    ],
)
def test_what_cannot_be_asked_says_why(project: Project, ref: str, to: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        gate(project.context, ref, to=to)


def test_missing_bytes_are_no_gate_but_a_broken_registry(project: Project) -> None:
    shutil.rmtree(project.folder / "mlx-artifacts")

    with pytest.raises(IntegrityError):
        gate(project.context, "digits/2", to="staging")


def test_a_gate_file_that_is_gone_is_said_and_not_taken_for_none(project: Project) -> None:
    settings = replace(project.settings, evaluation=replace(project.settings.evaluation, gates="gone.toml"))
    object.__setattr__(project.context, "settings", settings)

    with pytest.raises(NotFoundError, match=r"gone\.toml"):
        gate(project.context, "digits/2", to="production")
    assert gate(project.context, "digits/2", to="staging").verdict is Verdict.PASS


def test_the_command_writes_reports_and_ends_with_the_verdicts_code(
    project: Project, mlx: RunCommand, tmp_path: Path
) -> None:
    os.chdir(project.folder)
    junit, report = tmp_path / "gates.xml", tmp_path / "report"

    missing = mlx("gate", "digits/2", "--to", "production", "--json", "--junit", junit, "--report", report)
    refused = mlx("promote", "digits/2", "--to", "production", "--json")
    waiting = mlx("promote", "digits/2", "--to", "production", "--when-gates-pass")
    record(project, "digits/2", Verdict.FAIL)
    failed = mlx("gate", "digits/2", "--to", "production")
    record(project, "digits/2")
    rehearsed = mlx("promote", "digits/2", "--to", "production", "--dry-run")
    moved = mlx("promote", "digits/2", "--to", "production", "--when-gates-pass", "--json")

    codes = [run.code for run in (missing, refused, waiting, failed, rehearsed, moved)]
    assert codes == [7, 5, 7, 5, 0, 0]
    assert missing.data["gates"] == refused.document["error"]["gates"]
    assert waiting.out == "UNDECIDED digits/2 does not move yet to production: evaluation (no evidence).\n"
    assert "would move from nobody to 2" in rehearsed.out
    assert moved.data["changed"] is True
    cases = {case.get("name"): case for case in ET.parse(junit).getroot()}  # noqa: S314 - we wrote it
    assert cases["evaluation evaluation passed for this digest"].find("error") is not None
    assert orjson.loads((report / "report.json").read_bytes())["data"] == missing.data
    assert "evaluation" in (report / "report.html").read_text()


def test_rollback_on_the_command_line_rehearses_and_moves(project: Project, mlx: RunCommand) -> None:
    os.chdir(project.folder)
    for number in (1, 2, 3):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")

    rehearsed = mlx("rollback", "digits", "--to", "~2", "--dry-run", "--json")
    moved = mlx("rollback", "digits", "--expect", "3", "--json")
    again = mlx("rollback", "digits", "--expect", "3", "--json")
    unseen = mlx("rollback", "digits", "--to", "1", "--no-verify")
    refused = mlx("rollback", "digits", "--to", "3")

    codes = [run.code for run in (rehearsed, moved, again, unseen, refused)]
    assert codes == [0, 0, 0, 0, 4]
    assert (rehearsed.data["version"], moved.data["after"], again.data["changed"]) == (1, 2, False)
    assert "warning: Nobody looked" in unseen.err
    assert "rolled back from production" in refused.err


def test_moving_an_alias_of_a_sqlite_registry_needs_no_mlflow(project: Project) -> None:
    program = (
        "import sys; from mlx_platform.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print(code, 'mlflow' in sys.modules, 'pandas' in sys.modules, 'sqlalchemy' in sys.modules)"
    )

    def run(*words: str) -> str:
        command = [sys.executable, "-c", program, *words, "--quiet"]
        environment = clean_environment(MLX_CACHE_DIR=os.environ["MLX_CACHE_DIR"])
        done = subprocess.run(
            command, cwd=project.folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()[-1]

    assert run("promote", "digits/1", "--to", "staging") == "0 False False False"
    assert run("promote", "digits/2", "--to", "staging", "--when-gates-pass") == "0 False False False"
    assert run("rollback", "digits@staging") == "0 False False False"
    assert run("gate", "digits/1", "--to", "staging") == "0 False False False"


@pytest.mark.parametrize("kind", ["shadow", "rollout"])
def test_what_a_rollout_finds_out_can_be_asked_for(project: Project, kind: Any) -> None:
    policy = {"production": PromotionSettings(needs=(kind,))}
    object.__setattr__(project.context, "settings", replace(project.settings, promotion=policy))

    missing = gate(project.context, "digits/2", to="production")
    version = project.catalog.resolve("digits/2")
    project.catalog.record(version, evidence_of(version, kind=kind))

    assert (missing.exit_code, missing.data["commands"]) == (7, ["mlx rollout start digits/2"])
    assert gate(project.context, "digits/2", to="production").exit_code == 0


def test_a_version_that_a_rollout_took_back_stays_in_quarantine(project: Project) -> None:
    project.catalog.quarantine(project.catalog.resolve("digits/2"), "Rollout r1: 4 % of requests failed")

    result = gate(project.context, "digits/2", to="staging")

    assert result.exit_code == 5
    quarantine = next(one for one in result.data["gates"] if one["name"] == "quarantine")
    assert quarantine["message"] == "digits/2 is quarantined: Rollout r1: 4 % of requests failed."
    assert quarantine["override"] == ["quarantine"]


def test_whoever_would_end_a_rollout_by_a_move_is_told_before(project: Project) -> None:
    project.catalog.move("digits", "production", 1, kind="promote", actor="ada")
    transit(project, 2, step=0, weight=5)
    record(project, "digits/3")

    (warning,) = gate(project.context, "digits/3", to="production").warnings

    assert "The rollout r1 tries digits/2 for production" in warning
    assert "ends it as superseded" in warning
    assert gate(project.context, "digits/3", to="staging").warnings == ()
