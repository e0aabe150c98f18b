import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from projects import Project, evidence_of

from mlx_platform.core.clock import system_clock
from mlx_platform.core.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from mlx_platform.core.settings import load_settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import ARCHIVED, LABEL, Lineage


def promote(project: Project, *numbers: int, alias: str = "production") -> None:
    for number in numbers:
        assert project.catalog.move("digits", alias, number, kind="promote", actor="ada")


def edit(project: Project, statement: str, *values: object) -> None:
    connection = sqlite3.connect(project.database)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def test_versions_come_newest_first_with_their_lineage(project: Project) -> None:
    versions = project.catalog.versions("digits")

    assert [version.number for version in versions] == [3, 2, 1]
    assert versions[0].dataset_version == "2026-03"
    assert versions[0].params == {"lr": "0.3"}
    assert versions[0].metrics == {"f1": 0.93}
    assert versions[0].digest == project.package(3).digest
    assert versions[0].size == project.package(3).size
    assert versions[0].tags[LABEL] == versions[0].label
    assert len(project.catalog.versions("digits", limit=2)) == 2


def test_models_are_listed_without_the_journal(project: Project) -> None:
    promote(project, 2)

    (model,) = project.anew().models()

    assert (model.name, model.versions, model.newest.number) == ("digits", 3, 3)
    assert model.aliases == {"production": 2}


def test_every_form_of_reference_resolves(project: Project) -> None:
    promote(project, 1, 2, 3)
    catalog = project.anew()
    label = catalog.versions("digits")[1].label

    assert catalog.resolve("digits@production").number == 3
    assert catalog.resolve("digits@production~2").number == 1
    assert catalog.resolve("digits/2").aliases == ()
    assert catalog.resolve("models:/digits@production").aliases == ("production",)
    assert catalog.resolve(label).number == 2
    assert catalog.versions("digits", alias="production")[0].number == 3
    assert catalog.versions("digits", alias="staging") == ()


@pytest.mark.parametrize(
    ("ref", "error", "said"),
    [
        ("digits/9", NotFoundError, "newest is digits/3"),
        ("letters/1", NotFoundError, "no model 'letters'"),
        ("letters@production", NotFoundError, "no model 'letters'"),
        ("letters", NotFoundError, "no model 'letters'"),
        ("digits", UsageError, "say which version"),
        ("digits@production", NotFoundError, "holds the alias"),
        ("digits-20200101-001", NotFoundError, "no version with the label"),
        ("./model.onnx", UsageError, "no reference to a version, and no file"),
    ],
)
def test_what_does_not_resolve_says_what_is_there(
    project: Project, ref: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        project.catalog.resolve(ref)


def test_a_model_that_nobody_has_registered_is_told_how_to_be(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "my model.onnx"
    path.touch()
    with pytest.raises(UsageError, match="is a file") as caught:
        project.catalog.resolve(str(path))
    assert caught.value.hint == f"Register it with: mlx register NAME '{path}'"


def test_a_file_that_looks_like_a_name_is_to_be_registered_first(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin.skops").write_bytes(b"")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=r"'bin\.skops' is a file, and a registered version") as caught:
        project.catalog.resolve("bin.skops")
    assert caught.value.hint == "Register it with: mlx register NAME bin.skops"
    with pytest.raises(NotFoundError, match=r"no model 'other\.skops'"):
        project.catalog.resolve("other.skops")


def test_a_bare_name_lists_the_aliases(project: Project) -> None:
    promote(project, 2)

    with pytest.raises(UsageError) as caught:
        project.catalog.resolve("digits")

    assert "digits@production" in caught.value.hint


def test_reading_creates_nothing_where_there_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    catalog = Catalog(load_settings(start=tmp_path / "empty", environment={}))

    for read in (catalog.models, lambda: catalog.resolve("digits/1"), lambda: catalog.history("digits")):
        with pytest.raises(NotFoundError) as caught:
            read()
        assert "mlx init" in caught.value.hint

    assert list((tmp_path / "empty").iterdir()) == []


def test_reading_needs_no_mlflow(project: Project) -> None:
    promote(project, 1, 2)
    script = (
        "import sys\n"
        "from mlx_platform.core.settings import load_settings\n"
        "from mlx_platform.registry.catalog import Catalog\n"
        "catalog = Catalog(load_settings())\n"
        "version = catalog.resolve('digits@production')\n"
        "catalog.models(), catalog.versions('digits'), catalog.history('digits'), catalog.evidence(version)\n"
        "heavy = {'mlflow', 'numpy', 'orjson', 'pandas', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "catalog.fetch(version)\n"
        "heavy = {'mlflow', 'pandas', 'sqlalchemy', 'onnxruntime', 'onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project.folder, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


# Bytes


def test_a_second_fetch_does_not_touch_the_registry(project: Project) -> None:
    version = project.catalog.resolve("digits/1")
    first = project.catalog.fetch(version)
    shutil.rmtree(project.folder / "mlx-artifacts")

    assert project.anew().fetch(version) == first
    assert first.digest == project.package(1).digest
    assert first.model_path.read_bytes() == (project.folder / "model-1.onnx").read_bytes()


def test_bytes_that_are_gone_or_changed_are_an_integrity_error(project: Project) -> None:
    version = project.catalog.resolve("digits/1")
    for model in (project.folder / "mlx-artifacts").rglob("model.onnx"):
        model.write_bytes(b"x" * model.stat().st_size)
    with pytest.raises(IntegrityError, match="not what was registered"):
        project.catalog.fetch(version)

    shutil.rmtree(project.folder / "mlx-artifacts")
    with pytest.raises(IntegrityError):
        project.catalog.fetch(version)


@pytest.mark.parametrize(
    "location", ["/etc", "file:///etc", "../../etc", "http://evil/x", "/proc/self/root/etc"]
)
def test_a_row_that_points_elsewhere_is_never_opened(project: Project, location: str) -> None:
    edit(
        project,
        "UPDATE model_versions SET source = ?, storage_location = ? WHERE name = 'digits' AND version = 1",
        location,
        location,
    )

    with pytest.raises(IntegrityError, match="where no package may be"):
        project.catalog.fetch(project.catalog.resolve("digits/1"))


def test_a_version_that_was_not_registered_with_mlx_has_no_package(project: Project) -> None:
    edit(
        project, "DELETE FROM model_version_tags WHERE key = 'mlx.digest' AND version = 1 AND name = 'digits'"
    )

    version = project.catalog.resolve("digits/1")

    with pytest.raises(IntegrityError, match="carries no digest"):
        project.catalog.fetch(version)


# Registering


def test_new_content_becomes_the_next_version(project: Project) -> None:
    version, created = project.catalog.register("digits", project.variant("a"), Lineage(parent="digits/1"))

    assert created
    assert (version.number, version.parent) == (4, "digits/1")
    assert project.anew().fetch(version).digest == version.digest


def test_the_same_content_is_not_registered_again(project: Project) -> None:
    version, created = project.catalog.register("digits", project.package(2), Lineage(params={"lr": "9"}))

    assert (version.number, created) == (2, False)
    assert version.params == {"lr": "0.2"}
    with pytest.raises(ConflictError) as caught:
        project.catalog.register("digits", project.package(2), Lineage(), if_exists="fail")
    assert caught.value.details == {"version": 2}


@pytest.mark.parametrize("if_exists", ["reuse", "fail"])
def test_where_no_lock_reaches_the_second_of_two_registrations_gives_way(
    project: Project, monkeypatch: pytest.MonkeyPatch, if_exists: Literal["reuse", "fail"]
) -> None:
    package, other = project.variant("both"), project.anew()
    store = project.catalog._backend.store
    publish = store.publish

    def be_slower(*arguments: Any, **options: Any) -> int:
        other.register("digits", package, Lineage())
        return publish(*arguments, **options)

    monkeypatch.setattr(project.catalog._backend, "alone", nullcontext)
    monkeypatch.setattr(store, "publish", be_slower)
    if if_exists == "fail":
        with pytest.raises(ConflictError, match="digits/4 has the same content"):
            project.catalog.register("digits", package, Lineage(), if_exists=if_exists)
    else:
        version, created = project.catalog.register("digits", package, Lineage(), if_exists=if_exists)
        assert (version.number, created) == (4, False)

    assert [version.number for version in project.anew().versions("digits")] == [4, 3, 2, 1]
    assert len(list((project.folder / "mlx-artifacts" / "models").iterdir())) == 4
    assert project.catalog.removal.deleted("digits") == {}


def test_a_model_that_nobody_may_name_is_not_registered(project: Project) -> None:
    for name in ("../x", "mlx.journal.digits", "a\n", ""):
        with pytest.raises(UsageError):
            project.catalog.register(name, project.package(1), Lineage())


# Moves


def test_a_move_is_an_event_and_mlflows_alias_follows(project: Project) -> None:
    event = project.catalog.move(
        "digits",
        "production",
        2,
        kind="promote",
        actor="ada",
        reason="better",
        evidence={"evaluation": {"id": "1"}},
    )

    assert event is not None
    assert (event.from_version, event.to_version, event.actor, event.reason) == (None, 2, "ada", "better")
    assert event.digest == project.package(2).digest
    assert project.anew().history("digits") == (event,)
    assert project.anew().differences("digits") == ()


def test_a_move_to_the_holder_changes_nothing(project: Project) -> None:
    promote(project, 2)

    assert project.catalog.move("digits", "production", 2, kind="promote", actor="bob") is None
    assert project.catalog.move("digits", "production", 2, expect=2, kind="promote", actor="bob") is None
    assert len(project.catalog.history("digits")) == 1


@pytest.mark.parametrize("expect", [None, 1, 3])
def test_a_move_from_where_the_alias_is_not_is_a_conflict(project: Project, expect: int | None) -> None:
    promote(project, 2)

    with pytest.raises(ConflictError) as caught:
        project.catalog.move("digits", "production", 3, expect=expect, kind="promote", actor="bob")

    assert caught.value.details == {"expected": expect, "actual": 2}
    assert project.catalog.holders("digits") == {"production": 2}


def test_a_move_to_no_version_is_not_found(project: Project) -> None:
    with pytest.raises(NotFoundError):
        project.catalog.move("digits", "production", 9, kind="promote", actor="ada")


def test_the_journal_counts_when_somebody_moved_mlflows_alias(project: Project) -> None:
    promote(project, 2)
    edit(project, "UPDATE registered_model_aliases SET version = 1 WHERE name = 'digits'")
    catalog = project.anew()

    assert catalog.resolve("digits@production").number == 2
    (said,) = catalog.differences("digits", "production")
    assert "MLflow says that digits@production is 1, the journal says 2" in said
    assert "outside of mlx" in said
    assert catalog.differences("digits", "staging") == ()

    # Moving it to where it is puts MLflow's alias right.
    assert catalog.move("digits", "production", 2, kind="promote", actor="ada") is None
    assert catalog.differences("digits") == ()


def test_an_alias_that_was_set_in_mlflow_is_where_a_move_starts(project: Project) -> None:
    promote(project, 1, alias="staging")
    edit(
        project,
        "INSERT INTO registered_model_aliases (workspace, name, alias, version) "
        "VALUES ('default', 'digits', 'production', 1)",
    )
    catalog = project.anew()
    assert catalog.resolve("digits@production").number == 1

    event = catalog.move("digits", "production", 2, expect=1, kind="promote", actor="ada")

    assert event is not None
    assert event.from_version == 1
    assert catalog.journal("digits").rollback_targets("production") == (1,)


def test_a_broken_journal_answers_nothing(project: Project) -> None:
    promote(project, 1, 2)
    edit(
        project,
        "UPDATE model_version_tags SET value = replace(value, '\"ada\"', '\"eve\"') WHERE key = 'mlx.event' "
        "AND version = 1",
    )

    for ask in (
        lambda: project.catalog.resolve("digits@production"),
        lambda: project.catalog.history("digits"),
        lambda: project.catalog.move("digits", "production", 3, kind="promote", actor="ada"),
    ):
        with pytest.raises(IntegrityError, match="journal of digits is broken"):
            ask()


def test_a_version_is_found_by_its_number_though_the_journal_is_broken(project: Project) -> None:
    promote(project, 1, 2)
    label = project.catalog.resolve("digits/2").label
    edit(project, "UPDATE model_version_tags SET value = 'x' WHERE key = 'mlx.event' AND version = 1")

    assert project.catalog.resolve("digits/2").aliases == ()
    assert project.catalog.resolve(label).number == 2
    assert project.catalog.fetch(project.catalog.resolve("digits/2")).digest == project.package(2).digest


def test_a_deleted_event_breaks_the_journal(project: Project) -> None:
    promote(project, 1, 2, 3)
    edit(
        project,
        "UPDATE model_versions SET current_stage = 'Deleted_Internal' "
        "WHERE name = 'mlx.journal.digits' AND version = 2",
    )

    with pytest.raises(IntegrityError, match="event 2 is missing"):
        project.catalog.resolve("digits@production")


def test_a_newest_event_whose_tag_was_taken_away_does_not_make_the_version_before_live(
    project: Project,
) -> None:
    promote(project, 1, 2)
    edit(project, "DELETE FROM model_version_tags WHERE key = 'mlx.event' AND version = 2")

    with pytest.raises(IntegrityError, match="event 2 cannot be read"):
        project.catalog.resolve("digits@production")


def test_a_version_in_the_journal_model_that_is_no_event_breaks_the_journal(project: Project) -> None:
    promote(project, 1)
    edit(
        project,
        "INSERT INTO model_versions SELECT name, 99, creation_time, last_updated_time, description, user_id, "
        "current_stage, source, run_id, status, status_message, run_link, storage_location, workspace "
        "FROM model_versions WHERE name = 'mlx.journal.digits'",
    )

    with pytest.raises(IntegrityError, match="events 2 to 98 are missing"):
        project.catalog.resolve("digits@production")


def test_a_version_whose_digest_was_swapped_is_not_what_was_promoted(project: Project) -> None:
    promote(project, 2)
    edit(
        project,
        "UPDATE model_version_tags SET value = ? "
        "WHERE key = 'mlx.digest' AND name = 'digits' AND version = 2",
        project.package(1).digest,
    )

    with pytest.raises(IntegrityError, match="digest has changed"):
        project.catalog.resolve("digits@production")


def test_what_was_live_is_told_for_any_moment(project: Project) -> None:
    before = system_clock()
    promote(project, 1, 2)

    assert project.catalog.history("digits", at=before) == ()
    (event,) = project.catalog.history("digits", at=system_clock() + timedelta(seconds=1))
    assert event.to_version == 2
    assert [event.to_version for event in project.catalog.history("digits", alias="production")] == [2, 1]
    assert project.catalog.history("digits", alias="staging") == ()


# Evidence


def test_evidence_is_kept_with_the_version_and_its_digest(project: Project) -> None:
    version = project.catalog.resolve("digits/1")
    found = evidence_of(version)

    project.catalog.record(version, found)

    summary = project.anew().evidence(version)["evaluation"]
    assert (summary.id, summary.verdict, summary.digest) == (found.id, "pass", version.digest)
    assert summary.numbers["accuracy"]["lower"] == 0.93
    (document,) = (project.folder / "mlx-artifacts").rglob("evidence.json")
    assert json.loads(document.read_text()) == found.document()


def test_evidence_about_another_package_is_refused(project: Project) -> None:
    first, second = project.catalog.resolve("digits/1"), project.catalog.resolve("digits/2")

    with pytest.raises(IntegrityError):
        project.catalog.record(first, evidence_of(second))


def test_tags_are_read_back(project: Project) -> None:
    version = project.catalog.resolve("digits/1")

    project.catalog.set_tags(version, {ARCHIVED: "true"})

    assert project.anew().resolve("digits/1").archived


def test_a_model_is_not_named_like_the_label_of_a_version(project: Project) -> None:
    label = project.catalog.resolve("digits/1").label

    with pytest.raises(UsageError, match="label of a version"):
        project.catalog.register(label, project.package(1), Lineage())

    # Plain MLflow asks nobody: the version keeps its label.
    project.catalog._backend.store.ensure_model(label, tags={}, description="")
    project.catalog._backend.store.create_version(label, "models:/digits/1", tags={}, description="")
    assert project.catalog.resolve(label).ref == "digits/1"


def test_missing_bytes_name_the_version_and_what_to_do(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    shutil.rmtree(project.folder / "mlx-artifacts")

    for number, command in ((1, "mlx delete digits/1"), (2, "mlx rollback digits@production")):
        with pytest.raises(IntegrityError, match=f"digits/{number}") as caught:
            project.anew().fetch(project.catalog.resolve(f"digits/{number}"))
        assert command in caught.value.hint
