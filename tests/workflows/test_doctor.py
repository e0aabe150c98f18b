import os
import sqlite3
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from projects import Project, evidence_of, transit
from support import RunCommand

from mlx_platform.core.clock import system_clock
from mlx_platform.core.errors import GateFailedError, IntegrityError, NotFoundError, UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.package import seal
from mlx_platform.registry.anchor import ANCHOR_TAG
from mlx_platform.registry.version import QUARANTINED
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.delete import delete
from mlx_platform.workflows.doctor import doctor_package, doctor_registry
from mlx_platform.workflows.history import history
from mlx_platform.workflows.promote import promote as promote_again
from mlx_platform.workflows.resolve import resolve


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files in which nobody else leaves anything."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def moved(project: Project) -> Project:
    """`digits@production` held 1 and holds 2."""
    promote(project, 1)
    promote(project, 2)
    return project


def promote(project: Project, number: int, alias: str = "production") -> None:
    assert project.catalog.move("digits", alias, number, kind="promote", actor="ada")


def execute(project: Project, statement: str, *values: object) -> None:
    connection = sqlite3.connect(project.database)
    with connection:
        assert connection.execute(statement, values).rowcount > 0
    connection.close()


def point(project: Project, alias: str, number: int | None) -> None:
    """Move an alias as MLflow's page does."""
    project.catalog._backend.store.set_alias("digits", alias, number)


def fresh(project: Project) -> Context:
    return make_context(project.settings)


def wrong(result: Result) -> list[tuple[str, str]]:
    return [(one["check"], one["subject"]) for one in result.data["findings"] if not one["sound"]]


def test_a_sound_registry_passes_and_nothing_is_written(moved: Project) -> None:
    before = moved.database.read_bytes()

    result = doctor_registry(moved.context)

    assert (result.exit_code, result.data["healthy"], result.verdict) == (0, True, Verdict.PASS)
    assert {one["check"] for one in result.data["findings"]} == {"registry", "journal", "alias", "bytes"}
    assert moved.database.read_bytes() == before


def test_an_alias_that_somebody_moved_is_found_everywhere_and_repaired(moved: Project) -> None:
    point(moved, "production", 1)

    result = doctor_registry(fresh(moved), "digits")

    assert (result.exit_code, wrong(result)) == (10, [("alias", "digits@production")])
    assert result.report.next_steps[0] == "mlx doctor registry digits --repair"
    (warning,) = resolve(fresh(moved), "digits@production").warnings
    assert "mlx doctor registry digits" in warning
    told = history(fresh(moved), "digits")
    assert told.data["outside"] == [{"alias": "production", "journal": 2, "mlflow": 1, "seen": True}]
    assert "outside of mlx" in told.report.sections[0].rows[0]  # type: ignore[union-attr]

    repaired = doctor_registry(fresh(moved), "digits", repair=True)

    assert (repaired.exit_code, len(repaired.data["repaired"])) == (0, 1)
    assert moved.anew()._backend.reader.aliases("digits") == {"production": 2}
    assert doctor_registry(fresh(moved), "digits", repair=True).data["repaired"] == []


def test_an_alias_that_somebody_moved_is_adopted_with_actor_and_reason(moved: Project) -> None:
    point(moved, "production", 3)

    result = doctor_registry(fresh(moved), adopt=("digits@production",), reason="hotfix")

    assert result.exit_code == 0
    (event,) = result.data["adopted"]
    assert (event["kind"], event["from_version"], event["to_version"]) == ("adopt", 2, 3)
    assert (event["actor"], event["reason"]) == ("tester", "hotfix")
    assert event["evidence"]["overridden"] == ["evaluation"]
    assert moved.anew().resolve("digits@production").number == 3
    assert moved.anew().resolve("digits@production~1").number == 2
    assert moved.anew().journal("digits").rollback_targets("production") == (2, 1)
    again = doctor_registry(fresh(moved), adopt=("digits@production",))
    assert (again.exit_code, again.data["adopted"]) == (0, [])


def test_an_alias_that_somebody_took_away_is_adopted(moved: Project) -> None:
    point(moved, "production", None)

    doctor_registry(fresh(moved), adopt=("digits@production",))

    assert moved.anew().holders("digits") == {}
    assert history(fresh(moved), "digits@production", at="0s").data["live"] == {"production": None}
    with pytest.raises(NotFoundError):
        moved.anew().resolve("digits@production")


def test_an_alias_that_the_journal_never_saw_is_adopted(project: Project) -> None:
    point(project, "canary", 3)
    assert wrong(doctor_registry(fresh(project))) == [("alias", "digits@canary")]

    result = doctor_registry(fresh(project), "digits", adopt=("digits@canary",))

    assert (result.exit_code, result.data["adopted"][0]["from_version"]) == (0, None)
    assert project.anew().journal("digits").holder("canary") == 3


def test_adopting_is_not_easier_than_promoting(moved: Project) -> None:
    point(moved, "production", 3)
    with pytest.raises(GateFailedError, match="lacks what production asks for") as caught:
        doctor_registry(fresh(moved), adopt=("digits@production",))
    assert "--reason" in caught.value.hint

    moved.catalog.set_tags(moved.catalog.resolve("digits/3"), {QUARANTINED: "wrong answers"})
    with pytest.raises(GateFailedError, match="cannot be adopted as production: quarantine"):
        doctor_registry(fresh(moved), adopt=("digits@production",), reason="hotfix")

    assert moved.anew().resolve("digits@production").number == 2


def test_a_version_with_its_evidence_is_adopted_without_a_reason(moved: Project) -> None:
    version = moved.catalog.resolve("digits/3")
    moved.catalog.record(version, evidence_of(version))
    point(moved, "production", 3)

    (event,) = doctor_registry(fresh(moved), adopt=("digits@production",)).data["adopted"]

    assert event["evidence"]["evaluation"]["verdict"] == "pass"
    assert "overridden" not in event["evidence"]


@pytest.mark.parametrize(
    ("name", "adopt", "error"),
    [
        (None, "digits/3", UsageError),
        (None, "digits@production~1", UsageError),
        ("letters", "digits@production", UsageError),
        (None, "digits@nothing", NotFoundError),
        (None, "letters@production", NotFoundError),
        ("letters", "", NotFoundError),
    ],
)
def test_what_cannot_be_adopted_says_why(
    moved: Project, name: str | None, adopt: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        doctor_registry(fresh(moved), name, adopt=(adopt,) if adopt else ())


def test_a_repeated_promotion_puts_right_what_mlflow_says_and_warns(moved: Project) -> None:
    point(moved, "production", 1)

    result = promote_again(fresh(moved), "digits/2", to="production")

    assert result.data["changed"] is False
    assert "outside of mlx" in result.warnings[0]
    assert moved.anew().differences("digits") == ()


def test_a_broken_journal_is_told_in_full_and_never_repaired(moved: Project) -> None:
    execute(moved, "UPDATE model_version_tags SET value = 'x' WHERE key = 'mlx.event' AND version = 1")
    execute(moved, "UPDATE registered_model_tags SET value = 'x' WHERE key = ?", ANCHOR_TAG)

    result = doctor_registry(fresh(moved), repair=True)

    found = [one["measured"] for one in result.data["findings"] if one["check"] == "journal"]
    assert "docs/registry.md" in result.report.next_steps[0]
    assert result.exit_code == 10
    assert "event 1 cannot be read" in found
    assert "its anchor cannot be read" in found
    with pytest.raises(IntegrityError):
        doctor_registry(fresh(moved), adopt=("digits@production",), reason="x")


def test_an_anchor_that_lags_is_written(moved: Project) -> None:
    execute(moved, "DELETE FROM registered_model_tags WHERE key = ?", ANCHOR_TAG)
    assert doctor_registry(fresh(moved)).exit_code == 0

    result = doctor_registry(fresh(moved), repair=True)

    assert result.data["repaired"] == ["The anchor of digits is at its last event."]
    assert moved.anew().journal("digits").lag == 0


def test_bytes_that_changed_are_found_by_size_at_once_and_by_content_when_all_are_read(
    moved: Project,
) -> None:
    folder = moved.folder / "mlx-artifacts" / "models"
    first, second, _ = sorted(folder.iterdir())
    model = first / "artifacts" / "model.onnx"
    model.write_bytes(b"x" * model.stat().st_size)
    assert doctor_registry(fresh(moved)).exit_code == 0
    assert [check for check, _ in wrong(doctor_registry(fresh(moved), deep=True))] == ["bytes"]

    model.write_bytes(b"x")
    (second / "artifacts" / "manifest.json").unlink()

    result = doctor_registry(fresh(moved))
    assert [check for check, _ in wrong(result)] == ["bytes", "bytes"]

    assert result.report.next_steps


def test_lost_bytes_name_the_command_that_does_something_about_them(moved: Project) -> None:
    for manifest in (moved.folder / "mlx-artifacts").rglob("manifest.json"):
        manifest.unlink()

    findings = doctor_registry(fresh(moved)).data["findings"]
    commands = {one["subject"]: one["command"] for one in findings if one["check"] == "bytes"}

    held = moved.catalog.holders("digits")["production"]
    assert commands[f"digits/{held}"] == "mlx rollback digits@production"
    back = moved.catalog.journal("digits").rollback_targets("production")
    assert all(commands[f"digits/{n}"].startswith(f"mlx archive digits/{n} ") for n in back)
    free = {1, 2, 3} - {held, *back}
    for number in free:
        assert commands[f"digits/{number}"] == f"mlx delete digits/{number}"
        delete(fresh(moved), f"digits/{number}", confirm=lambda _: True)


def test_a_size_that_the_package_does_not_have_is_told(moved: Project) -> None:
    moved.catalog.set_tags(moved.catalog.resolve("digits/1"), {"mlx.size": "5"})

    result = doctor_registry(fresh(moved))

    assert result.exit_code == 0
    assert any("mlx.size says 5 bytes" in warning for warning in result.warnings)


def test_a_digest_that_was_taken_away_is_no_sound_registry(moved: Project) -> None:
    execute(moved, "DELETE FROM model_version_tags WHERE key = 'mlx.digest' AND version = 3")

    assert ("digest", "digits/3") in wrong(doctor_registry(fresh(moved)))


def test_a_source_outside_of_the_allowed_places_is_found(moved: Project) -> None:
    execute(
        moved,
        "UPDATE model_versions SET source = '/etc', storage_location = '/etc' "
        "WHERE name = 'digits' AND version = 1",
    )

    assert wrong(doctor_registry(fresh(moved))) == [("source", "digits/1")]


def test_names_that_no_model_of_ours_may_have_are_told(moved: Project) -> None:
    store = moved.catalog._backend.store
    store.ensure_model("evil name\x1b[2J", tags={}, description="")
    store.ensure_model("mlx.journal.gone", tags={}, description="")

    result = doctor_registry(fresh(moved))

    assert result.exit_code == 0
    assert {one["check"] for one in result.data["findings"] if one["note"]} == {"names", "journal"}
    assert all(warning.isprintable() for warning in result.warnings)


def test_leftovers_are_told_and_removed(moved: Project, place: Path) -> None:
    (place / "mlx-old_1234").mkdir(mode=0o700)
    long_ago = (datetime.now(UTC) - timedelta(days=3)).timestamp()
    os.utime(place / "mlx-old_1234", (long_ago, long_ago))
    execute(moved, "DELETE FROM model_version_tags WHERE name = 'digits' AND version = 3")
    execute(moved, "DELETE FROM model_versions WHERE name = 'digits' AND version = 3")
    execute(moved, "DELETE FROM model_version_tags WHERE key = 'mlx.label' AND version = 1")
    context = make_context(moved.settings, clock=lambda: system_clock() + timedelta(days=2))

    told = doctor_registry(context)
    done = doctor_registry(context, repair=True)

    assert {one["check"] for one in told.data["findings"] if one["repairable"]} == {
        "folder",
        "registration",
        "label",
    }
    assert (told.exit_code, done.exit_code, len(done.data["repaired"])) == (0, 0, 3)
    assert list(place.iterdir()) == []
    assert doctor_registry(context).report.checks[-1].verdict is Verdict.PASS
    assert not any(one["repairable"] for one in doctor_registry(context).data["findings"])


def test_a_package_is_examined_with_its_golden_cases(moved: Project) -> None:
    result = doctor_package(moved.context, "digits/2")

    assert (result.exit_code, result.data["version"], result.data["problems"]) == (0, 2, [])
    assert [check.verdict for check in result.report.checks] == [Verdict.PASS] * 3
    assert doctor_package(moved.context, str(moved.folder / "packages" / "1")).data["version"] is None


def test_a_package_without_golden_cases_is_undecided(moved: Project) -> None:
    folder = moved.folder / "packages" / "1"
    (folder / "golden.jsonl").unlink()
    seal(folder)

    result = doctor_package(moved.context, str(folder))

    assert (result.exit_code, result.data["cases"]) == (7, 0)
    assert "nothing says what it should answer" in result.report.summary


def test_a_package_with_changed_bytes_is_an_integrity_error(moved: Project) -> None:
    (moved.folder / "packages" / "1" / "model.toml").write_text("format = 1\n")

    with pytest.raises(IntegrityError):
        doctor_package(moved.context, str(moved.folder / "packages" / "1"))


def test_the_commands_end_with_their_codes(
    moved: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(moved.folder)
    assert mlx("doctor", "registry").code == 0
    point(moved, "production", 1)

    found = mlx("doctor", "registry", "--json")

    assert found.code == 10
    assert found.document["exit_code"] == 10
    assert found.document["command"] == "doctor registry"
    assert mlx("doctor", "registry", "digits", "--repair").code == 0
    assert mlx("doctor", "package", "digits@production").code == 0
    assert mlx("doctor", "registry", "letters").code == 3
    assert mlx("history", "digits", "--verify", "--json").document["verdict"] == "pass"


def test_a_rollout_that_goes_on_is_told_and_sound(moved: Project) -> None:
    transit(moved, 3, step=0, weight=5, stable=2)
    moved.catalog.quarantine(moved.catalog.resolve("digits/3"), "tried by force")

    result = doctor_registry(fresh(moved))

    assert result.exit_code == 0
    assert "The rollout r1 tries digits/3 for production: step 1 (5 %)." in result.warnings


def test_a_rollout_without_its_candidate_is_broken(moved: Project) -> None:
    transit(moved, 3, step=0, weight=5, stable=2)
    moved.catalog._backend.writer.delete_version("digits", 3)

    result = doctor_registry(fresh(moved), "digits")

    assert ("rollout", "digits") in wrong(result)
    assert "mlx rollout abort digits" in result.report.next_steps
    transit(moved, None, "ABORTED")
    assert doctor_registry(fresh(moved), "digits", repair=True).exit_code == 0


def test_a_rollout_whose_alias_somebody_moved_is_put_right_not_adopted(moved: Project) -> None:
    transit(moved, 3, step=0, weight=5, stable=2)
    point(moved, "canary", 1)

    result = doctor_registry(fresh(moved), "digits")
    (finding,) = [one for one in result.data["findings"] if one["subject"] == "digits@canary"]
    repaired = doctor_registry(fresh(moved), "digits", repair=True)

    assert finding["command"] == "mlx doctor registry digits --repair"
    assert repaired.exit_code == 0
    assert moved.anew()._backend.reader.aliases("digits")["canary"] == 3


def test_a_rollout_that_nobody_ended_after_production_moved_is_told(moved: Project) -> None:
    transit(moved, 3, step=0, weight=5, stable=2)
    moved.catalog.move("digits", "production", 1, kind="promote", actor="ada")

    (note,) = [text for text in doctor_registry(fresh(moved)).warnings if "rollout" in text]

    assert note.endswith("digits@production is 1 meanwhile, and no server has said that it knows.")


def test_what_servers_left_behind_a_rollout_is_tidied_up_once_it_has_ended(moved: Project) -> None:
    transit(moved, 3, step=0, weight=5, stable=2)
    moved.catalog.set_model_tags("digits", {"mlx.rollout.lease": "{}", "mlx.rollout.arms.a": "{}"})
    doctor_registry(fresh(moved), repair=True)
    assert "mlx.rollout.lease" in moved.anew().sight("digits").tags
    transit(moved, None, "ABORTED")

    (note,) = [text for text in doctor_registry(fresh(moved)).warnings if "rollout" in text]
    result = doctor_registry(fresh(moved), repair=True)

    assert note == "A server did not tidy up behind a rollout of digits that has ended."
    assert result.data["repaired"] == ["What a rollout of digits left behind was removed."]
    assert [key for key in moved.anew().sight("digits").tags if "rollout" in key] == []
