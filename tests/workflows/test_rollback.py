import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from projects import Project, evidence_of, transit
from support import clean_environment

from mlx_platform.core.errors import (
    ConflictError,
    GateFailedError,
    IntegrityError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import ARCHIVED, QUARANTINED
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.rollback import rollback


@pytest.fixture
def moved(project: Project) -> Project:
    """`digits@production` went from 1 to 2 to 3."""
    for number in (1, 2, 3):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")
    return project


def test_the_version_before_comes_back_without_gates(moved: Project) -> None:
    result = rollback(moved.context, "digits", reason="wrong answers")

    assert (result.data["before"], result.data["after"], result.data["changed"]) == (3, 2, True)
    assert (result.data["event"]["kind"], result.data["event"]["reason"]) == ("rollback", "wrong answers")
    assert moved.anew().resolve("digits@production").number == 2
    assert moved.anew().differences("digits") == ()


def test_a_second_rollback_goes_further_back_and_a_third_has_nowhere_to_go(moved: Project) -> None:
    rollback(moved.context, "digits")

    assert rollback(moved.context, "digits").data["after"] == 1
    with pytest.raises(ConflictError, match="No earlier holder"):
        rollback(moved.context, "digits")


@pytest.mark.parametrize("to", ["1", "digits/1", "digits@production~2"])
def test_a_named_target_can_be_repeated_safely(moved: Project, to: str) -> None:
    assert rollback(moved.context, "digits", to=to).data["changed"]

    again = rollback(moved.context, "digits", to="1")

    assert (again.data["changed"], again.data["event"], again.exit_code) == (False, None, 0)
    assert len(moved.catalog.history("digits")) == 4


@pytest.mark.parametrize("tag", [QUARANTINED, ARCHIVED])
def test_quarantined_and_archived_versions_are_passed_over(moved: Project, tag: str) -> None:
    moved.catalog.set_tags(moved.catalog.resolve("digits/2"), {tag: "true"})

    with pytest.raises(ConflictError):
        rollback(moved.context, "digits", to="2")
    result = rollback(moved.context, "digits")

    assert result.data["after"] == 1
    assert "passed over" in result.warnings[0]


def test_a_target_without_its_bytes_is_refused_and_nothing_moves(moved: Project) -> None:
    shutil.rmtree(moved.folder / "mlx-artifacts")

    with pytest.raises(IntegrityError):
        rollback(moved.context, "digits")

    assert moved.catalog.resolve("digits@production").number == 3


def test_another_alias_is_named_with_the_model(moved: Project) -> None:
    for number in (3, 1):
        moved.catalog.move("digits", "staging", number, kind="promote", actor="ada")

    assert rollback(moved.context, "digits@staging").data["after"] == 3
    assert moved.catalog.holders("digits") == {"production": 3, "staging": 3}


@pytest.mark.parametrize(
    ("name", "to", "error"),
    [
        ("letters", None, NotFoundError),
        ("digits@staging", None, NotFoundError),
        ("digits", "99", NotFoundError),
        ("digits/2", None, UsageError),
        ("digits@production~1", None, UsageError),
        ("digits", "latest!", UsageError),
        ("./digits", None, UsageError),
    ],
)
def test_what_cannot_be_rolled_back_says_why(
    moved: Project, name: str, to: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        rollback(moved.context, name, to=to)


def test_a_version_of_another_model_is_no_target(moved: Project) -> None:
    from mlx_platform.registry.version import Lineage

    moved.catalog.register("letters", moved.package(1), Lineage())

    with pytest.raises(UsageError, match="no version of digits"):
        rollback(moved.context, "digits", to="letters/1")


def forget_bytes(project: Project) -> None:
    """Empty the cache, so that bytes come from the registry again."""
    shutil.rmtree(project.settings.path(project.settings.cache.dir), ignore_errors=True)


def test_a_dry_run_chooses_and_verifies_and_writes_nothing(moved: Project) -> None:
    before = moved.database.read_bytes()

    result = rollback(moved.context, "digits", dry_run=True)

    assert (result.data["version"], result.data["after"]) == (2, 3)
    assert (result.data["changed"], result.data["would_change"], result.data["verified"]) == (
        False,
        True,
        True,
    )
    assert "would go back from 3 to 2" in result.report.summary
    assert moved.database.read_bytes() == before


def test_a_holder_further_back_can_be_counted(moved: Project) -> None:
    assert rollback(moved.context, "digits", to="~2", dry_run=True).data["version"] == 1
    assert rollback(moved.context, "digits", to="~1").data["version"] == 2
    with pytest.raises(ConflictError, match="digits/3 was rolled back from production"):
        rollback(moved.context, "digits", to="~1")
    with pytest.raises(NotFoundError, match="earlier holder"):
        rollback(moved.context, "digits", to="~9")


def test_a_rollback_of_a_named_version_can_be_repeated_without_going_further_back(moved: Project) -> None:
    assert rollback(moved.context, "digits", expect="3").data["after"] == 2

    again = rollback(moved.context, "digits", expect="3")

    assert (again.data["changed"], again.data["after"], again.exit_code) == (False, 2, 0)
    assert rollback(moved.context, "digits", expect="3", to="2").data["changed"] is False
    for expect, to in (("1", None), ("none", None), ("3", "1")):
        with pytest.raises(ConflictError, match="is 2, not"):
            rollback(moved.context, "digits", expect=expect, to=to)


def test_what_never_held_the_alias_is_promoted_and_not_rolled_back_to(project: Project) -> None:
    for number in (1, 2):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")

    with pytest.raises(ConflictError, match="digits/3 never held production") as caught:
        rollback(project.context, "digits", to="3")

    assert "mlx promote digits/3 --to production" in caught.value.hint


def test_no_way_leads_back_to_a_version_that_was_rolled_back_until_it_is_promoted_again(
    moved: Project,
) -> None:
    rollback(moved.context, "digits", reason="wrong answers")

    with pytest.raises(ConflictError, match="wrong answers") as caught:
        rollback(moved.context, "digits", to="3")
    assert "--override quarantine" in caught.value.hint

    override = ("quarantine", "evaluation")
    promote(moved.context, "digits/3", to="production", override=override, reason="it was the data")
    promote(moved.context, "digits/1", to="production", override=("all",), reason="x")
    assert rollback(moved.context, "digits").data["after"] == 3


def test_a_target_that_is_another_package_now_is_passed_over(moved: Project) -> None:
    moved.catalog.set_tags(
        moved.catalog.resolve("digits/2"), {"mlx.digest": moved.catalog.resolve("digits/1").digest}
    )

    with pytest.raises(IntegrityError, match="its digest has changed"):
        rollback(moved.context, "digits", to="2")
    result = rollback(moved.context, "digits")

    assert result.data["after"] == 1
    assert "its digest has changed. It was passed over." in result.warnings[0]


def test_a_target_that_does_not_load_is_refused_with_the_way_further_back(
    moved: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    with pytest.raises(GateFailedError, match="digits/2 cannot be loaded on this machine") as caught:
        rollback(moved.context, "digits")

    assert "stays at 3" in caught.value.message
    assert "mlx rollback digits@production --to 1" in caught.value.hint
    assert "--no-verify" in caught.value.hint
    assert moved.catalog.resolve("digits@production").number == 3


def test_in_an_emergency_the_alias_moves_unseen_and_the_move_says_so(moved: Project) -> None:
    shutil.rmtree(moved.folder / "mlx-artifacts")

    result = rollback(moved.context, "digits", verify=False)

    assert (result.data["after"], result.data["verified"]) == (2, False)
    assert result.data["event"]["evidence"] == {"overridden": ["self-check"]}
    assert "digits/2" in result.warnings[0]


def test_a_store_that_is_away_says_how_to_go_back_without_it(
    moved: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise UnavailableError("The store cannot be reached.", hint="Is it up?")

    monkeypatch.setattr(Catalog, "fetch", away)

    with pytest.raises(UnavailableError, match="cannot be reached") as caught:
        rollback(moved.context, "digits")

    assert caught.value.hint.startswith("Is it up?")
    assert "mlx rollback digits@production --to 2 --no-verify" in caught.value.hint


def test_a_rollback_works_when_runs_metrics_and_evidence_are_gone_for_good(moved: Project) -> None:
    from mlflow import MlflowClient

    for number in (1, 2, 3):
        version = moved.catalog.resolve(f"digits/{number}")
        moved.catalog.record(version, evidence_of(version))
    uri = f"sqlite:///{moved.database}"
    client = MlflowClient(uri)
    runs = [
        run.info.run_id
        for experiment in client.search_experiments()
        for run in client.search_runs([experiment.experiment_id])
    ]
    for run in runs:
        client.delete_run(run)
    mlflow_gc(uri)
    assert not client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    forget_bytes(moved)

    result = rollback(moved.context, "digits")

    assert len(runs) >= 6
    assert (result.data["after"], result.data["verified"]) == (2, True)
    assert (
        moved.anew().fetch(moved.anew().resolve("digits@production")).digest == result.data["event"]["digest"]
    )


def mlflow_gc(uri: str) -> None:
    command = [str(Path(sys.executable).with_name("mlflow")), "gc", "--backend-store-uri", uri]
    environment = clean_environment(MLFLOW_TRACKING_URI=uri)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("to", ["-2", "~2"])
def test_holders_are_counted_in_a_form_that_shells_leave_alone(moved: Project, to: str) -> None:
    assert rollback(moved.context, "digits", to=to, dry_run=True).data["version"] == 1


@pytest.mark.parametrize(("to", "said"), [("/home/ada", "a path"), ("~0", "counts no"), ("-0", "counts no")])
def test_what_a_shell_made_of_a_tilde_is_told(moved: Project, to: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        rollback(moved.context, "digits", to=to)
    assert "-1 for the holder before" in caught.value.hint


def test_an_archived_target_says_how_to_take_it_out(moved: Project) -> None:
    moved.catalog._backend.store.set_tags("digits", 1, {ARCHIVED: "true"})

    with pytest.raises(ConflictError) as caught:
        rollback(moved.context, "digits", to="1")
    assert "mlx archive digits/1 --undo" in caught.value.hint


def test_a_rollback_during_a_rollout_moves_and_says_that_it_ends_it(project: Project) -> None:
    for number in (3, 1):
        project.catalog.move("digits", "production", number, kind="promote", actor="ada")
    transit(project, 2, step=0, weight=5)

    with pytest.raises(ConflictError, match="digits@canary belongs to a rollout"):
        rollback(project.context, "digits@canary")
    result = rollback(project.context, "digits")

    assert (result.data["before"], result.data["after"]) == (1, 3)
    assert "ends it as superseded" in result.warnings[0]
