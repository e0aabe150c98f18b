from datetime import UTC, datetime
from pathlib import Path

import pytest
from projects import Project, evidence_of

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.report import Table
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.sample_format import SampledRow
from mlx_platform.registry.version import PARAMS, QUARANTINED, SIZE, Lineage
from mlx_platform.workflows import dataset
from mlx_platform.workflows.archive import archive
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.resolve import resolve
from mlx_platform.workflows.sampling.export import write_rows
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


def test_a_version_tells_the_labels_that_it_was_trained_on(project: Project, tmp_path: Path) -> None:
    fields = {"time": "2026-03-08T12:00:00Z", "model": "digits", "version": "2", "digest": "d" * 64}
    drawn = {"arm": "production", "strategy": "random", "seed": 0, "score": 1.0}
    weighed = {"inclusion_probability": 0.5, "weight": 2.0, "prediction": {}, "inputs": {"x": 1.0}}
    row = SampledRow("r-1", 0, "0" * 16, **fields, **drawn, **weighed, label="a")
    write_rows(tmp_path / "l.jsonl", [row], "jsonl")
    ref = dataset.add(project.context, "reviews", [tmp_path / "l.jsonl"]).data["increment"]["ref"]

    trained, _ = project.catalog.register("digits", project.variant("t"), Lineage(dataset_version=ref))
    other, _ = project.catalog.register(
        "digits", project.variant("o"), Lineage(dataset_version="../reviews@" + "0" * 16)
    )

    shown = show(project.context, trained.ref)
    assert shown.data["increment"] == {"ref": ref, "rows": 1, "parent": "", "models": ["digits/2"]}
    facts = {fact.label: fact.value for fact in shown.report.facts}
    assert facts["increment"] == "1 labelled row, answered by digits/2"
    assert show(project.context, other.ref).data["increment"] is None


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
    assert (result.exit_code, result.data["ref"], result.data["history"]) == (0, "digits/2", None)
    unknown = {key: result.data[key] for key in ("state", "aliases", "candidate", "rolled_back")}
    assert unknown == {"state": "unknown", "aliases": None, "candidate": None, "rolled_back": None}
    assert result.report.next_steps == ("mlx doctor registry digits",)
    assert show(project.context, "digits/2", fields=["digest"]).exit_code == 0
    for field in ("state", "alias", "aliases", "candidate", "rolled_back", "history"):
        with pytest.raises(IntegrityError, match="broken"):
            show(project.context, "digits/2", fields=[field])
    with pytest.raises(IntegrityError):
        show(project.context, "digits@production")


def test_a_page_names_who_registered_it_ancestors_children_and_the_environment(project: Project) -> None:
    lineage = Lineage(parent="digits/2", git_commit="a" * 40 + "+dirty", tags={"mlx.actor": "ada"})
    child, _ = project.catalog.register("digits", project.variant("child"), lineage)
    grandchild, _ = project.catalog.register("digits", project.variant("next"), Lineage(parent=child.ref))

    parent, made = show(project.context, "digits/2"), show(project.context, grandchild.ref)
    facts = {fact.label: fact.value for fact in show(project.context, child.ref).report.facts}

    assert parent.data["family"] == {"parents": [], "children": [child.ref]}
    assert made.data["family"] == {"parents": [child.ref, "digits/2"], "children": []}
    assert (facts["registered by"], facts["made from"], facts["made into"]) == ("ada", "digits/2", "digits/5")
    assert facts["commit"] == "a" * 40 + " (with changes that were not committed)"
    assert facts["environment"].startswith("python 3.")
    assert "onnxruntime " in facts["environment"]
    assert facts["run"] == child.run_id


def test_ancestors_end_where_tags_go_round_or_nowhere(project: Project) -> None:
    for number, parent in ((1, "digits/2"), (2, "digits/1"), (3, "../../etc")):
        project.catalog.set_tags(project.catalog.resolve(f"digits/{number}"), {"mlx.parent": parent})

    assert show(project.context, "digits/1").data["family"]["parents"] == ["digits/2"]
    assert show(project.context, "digits/3").data["family"]["parents"] == ["../../etc"]


def test_evidence_has_its_age_and_its_numbers(project: Project) -> None:
    version = project.catalog.resolve("digits/2")
    project.catalog.record(version, evidence_of(version))
    now = datetime(2026, 3, 11, 8, tzinfo=UTC)

    sections = show(make_context(project.settings, clock=lambda: now), "digits/2").report.sections

    table = next(section for section in sections if section.title == "Evidence")
    assert isinstance(table, Table)
    assert table.rows[0][2:4] == ("3 days ago", "accuracy=0.95, rows=500")


def test_single_fields_are_values_and_nothing_else(project: Project) -> None:
    version = project.catalog.resolve("digits/2")
    project.catalog.record(version, evidence_of(version))
    names = (
        "digest",
        "metrics.f1",
        "params.lr",
        "evaluation.accuracy",
        "evidence.evaluation",
        "parent",
        "params",
    )

    result = show(project.context, "digits/2", fields=names)

    assert result.report.lines == (version.digest, "0.92", "0.2", "0.95", "pass", "", '{"lr": "0.2"}')
    assert result.data["metrics.f1"] == 0.92
    assert tuple(result.data) == names
    with pytest.raises(NotFoundError) as missing:
        show(project.context, "digits/2", fields=("metrics.f2",))
    assert "metrics.f1" in missing.value.hint
    with pytest.raises(UsageError) as unknown:
        show(project.context, "digits/2", fields=("digst",))
    assert "digest" in unknown.value.hint


def test_a_version_that_was_rolled_back_says_so_everywhere(project: Project) -> None:
    for number, kind in ((1, "promote"), (2, "promote"), (1, "rollback")):
        project.catalog.move("digits", "production", number, kind=kind, actor="ada")  # type: ignore[arg-type]

    result = show(project.context, "digits/2")

    state = "rolled back from production"
    assert result.report.summary == f"digits/2: {state}."
    assert next(fact.value for fact in result.report.facts if fact.label == "state") == state
    assert show(project.context, "digits/2", fields=["state", "candidate"]).report.lines == (state, "no")
    assert project.catalog.resolve("digits/2").state == resolve(project.context, "digits/2").data["state"]
    assert archive(project.context, "digits/2").data["before"] == state


def test_a_yes_or_no_field_is_yes_or_no(project: Project) -> None:
    fields = ["quarantined", "archived", "tags.mlx.quarantined"]
    project.catalog.set_tags(project.catalog.resolve("digits/1"), {QUARANTINED: "wrong answers"})

    assert show(project.context, "digits/1", fields=fields).report.lines == ("yes", "no", "wrong answers")


def test_damaged_tags_are_told_and_not_taken_for_none(project: Project) -> None:
    project.catalog.set_tags(project.catalog.resolve("digits/1"), {PARAMS: "{", SIZE: "-5"})

    result = show(project.context, "digits/1")

    assert (result.data["params"], result.data["size"]) == (None, None)
    assert [PARAMS in text or SIZE in text for text in result.warnings] == [True, True]
    for field in ("params", "params.lr", "size"):
        with pytest.raises(IntegrityError, match="cannot be read"):
            show(project.context, "digits/1", fields=[field])
