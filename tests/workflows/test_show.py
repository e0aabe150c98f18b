import pytest
from projects import Project, evidence_of

from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.report import Table
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.show import show


def test_a_page_has_lineage_signature_evidence_and_moves(project: Project) -> None:
    version = project.catalog.resolve("digits/2")
    project.catalog.record(version, evidence_of(version))
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    project.catalog.move("digits", "staging", 3, kind="promote", actor="ada")

    result = show(project.context, "digits@production")

    assert result.data["ref"] == "digits/2"
    assert result.data["signature"] == {
        "task": "classification",
        "inputs": "x FP32 [?, 4]",
        "outputs": "probabilities FP32 [?, 3]",
    }
    assert result.data["evidence"]["evaluation"]["verdict"] == "pass"
    assert [event["to_version"] for event in result.data["history"]] == [2]
    tables = {section.title: section for section in result.report.sections if isinstance(section, Table)}
    assert set(tables) == {"Parameters", "Training metrics", "Evidence", "Moves"}
    assert tables["Evidence"].rows[0][:2] == ("evaluation", Verdict.PASS)
    assert result.report.next_steps == ("mlx serve digits@production",)


def test_the_next_command_is_what_the_version_lacks(project: Project) -> None:
    assert show(project.context, "digits/1").report.next_steps == (
        "mlx eval digits/1 --data TEST.parquet --gates gates.toml",
        "mlx promote digits/1 --to staging",
    )


def test_a_difference_to_mlflow_is_a_warning(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    project.catalog._backend.store.set_alias("digits", "production", 1)

    (warning,) = show(project.context, "digits/2").warnings

    assert "the journal counts" in warning


def test_a_version_is_shown_by_its_number_though_the_journal_is_broken(project: Project) -> None:
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    project.catalog._backend.store.set_tags("mlx.journal.digits", 1, {"mlx.event": "x"})

    result = show(project.context, "digits/2")

    (warning,) = result.warnings
    assert "journal of digits is broken" in warning
    assert (result.exit_code, result.data["ref"], result.data["history"]) == (0, "digits/2", [])
    with pytest.raises(IntegrityError):
        show(project.context, "digits@production")
