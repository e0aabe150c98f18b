import os
from pathlib import Path

import pytest
from hostile import LOCATIONS
from plain_mlflow import Plain
from projects import Project, evidence_of
from support import RunCommand, sha256_of

from mlx_platform.core.errors import ConflictError, MlxError, NotFoundError, UsageError
from mlx_platform.workflows.adopt import adopt
from mlx_platform.workflows.gate import gate
from mlx_platform.workflows.promote import promote
from mlx_platform.workflows.register import register
from mlx_platform.workflows.rollback import rollback
from mlx_platform.workflows.show import show


def test_a_version_is_adopted_with_what_its_run_knows(theirs: Project) -> None:
    result = adopt(theirs.context, "theirs/2")

    version = theirs.anew().resolve("theirs/5")
    assert result.data["ref"] == "theirs/5"
    assert version.sealed
    assert version.params == {"lr": "0.1", "layers": "2"}
    assert version.metrics == {"f1": 0.93}
    assert version.dataset_version == "writers (77aa)"
    assert version.git_commit == "0123456789abcdef0123456789abcdef01234567"
    assert version.tags["team"] == "vision"
    assert version.tags["mlx.adopted_from"] == "theirs/2"
    assert version.tags["mlx.adopted_held"] == "stage Production"
    assert version.tags["mlx.actor"] == "tester"
    assert theirs.catalog.holders("theirs") == {"champion": 3}
    assert result.report.next_steps == (
        "mlx eval theirs/5 --data TEST.parquet --gates gates.toml",
        "mlx promote theirs/5 --to production --expect none",
    )
    assert any("loss" in warning for warning in result.warnings)


def test_the_network_is_the_one_that_was_logged_byte_for_byte(theirs: Project) -> None:
    adopt(theirs.context, "theirs/2")

    package = theirs.catalog.fetch(theirs.catalog.resolve("theirs/5"))
    assert sha256_of(package.model_path) == sha256_of(theirs.folder / "model-2.onnx")


def test_adopting_again_finds_the_version_that_is_there(theirs: Project) -> None:
    first = adopt(theirs.context, "theirs/2")
    again = adopt(theirs.context, "theirs/2")
    itself = adopt(theirs.context, "theirs/5")

    assert (first.data["created"], again.data["created"], itself.data["created"]) == (True, False, False)
    assert first.data["ref"] == again.data["ref"] == itself.data["ref"] == "theirs/5"
    assert len(theirs.anew().versions("theirs")) == 5


def test_a_dry_run_says_what_would_be_and_writes_nothing(theirs: Project) -> None:
    before = theirs.database.read_bytes()

    result = adopt(theirs.context, "theirs/2", dry_run=True)

    assert theirs.database.read_bytes() == before
    assert (result.data["ref"], result.data["created"], result.data["dry_run"]) == (None, False, True)
    (found,) = result.data["adopted"]
    assert found["params"] == {"lr": "0.1", "layers": "2"}
    assert found["next"] == ["mlx promote theirs/NUMBER --to production --expect none"]
    adopt(theirs.context, "theirs/2")
    assert adopt(theirs.context, "theirs/2", dry_run=True).data["ref"] == "theirs/5"


def test_every_version_that_holds_something_is_adopted(theirs: Project) -> None:
    result = adopt(theirs.context, "theirs")

    assert [(found["from"], found["held"], found["ref"]) for found in result.data["adopted"]] == [
        ("theirs/1", "stage Staging", "theirs/5"),
        ("theirs/2", "stage Production", "theirs/6"),
        ("theirs/3", "alias champion", "theirs/7"),
    ]
    assert (result.data["refused"], result.exit_code) == ([], 0)
    assert result.report.next_steps[-1] == "mlx promote theirs/7 --to champion --expect 3"
    adopted = theirs.anew().resolve("theirs/7")
    assert (adopted.description, adopted.tags["owner"]) == ("wider layers", "ada")


def test_what_cannot_be_adopted_does_not_keep_the_others_from_it(theirs: Project, mlx: RunCommand) -> None:
    theirs.catalog.set_tags(theirs.catalog.resolve("theirs/4"), {"mlx.note": "x"})
    theirs.context.catalog._backend.writer.set_alias("theirs", "old", 4)
    os.chdir(theirs.folder)

    outcome = mlx("adopt", "theirs", "--json")

    assert outcome.code == 7
    assert len(outcome.data["adopted"]) == 3
    (refused,) = outcome.data["refused"]
    assert (refused["from"], refused["error"]["code"]) == ("theirs/4", "usage")
    assert "sklearn" in mlx("adopt", "theirs").out


def test_nobody_is_told_to_adopt_what_cannot_be(theirs: Project) -> None:
    shown = show(theirs.context, "theirs/4")
    gated = gate(theirs.context, "theirs/4", to="staging")
    with pytest.raises(ConflictError) as caught:
        promote(theirs.context, "theirs/4", to="staging")

    assert "mlx adopt" not in f"{shown.report.next_steps} {shown.warnings} {gated.data['commands']}"
    assert any("skops" in warning for warning in shown.warnings)
    assert "skops" in caught.value.hint
    assert show(theirs.context, "theirs/3").report.next_steps == ("mlx adopt theirs/3",)


def test_nothing_to_adopt_is_said(project: Project) -> None:
    assert "No unsealed version of digits" in adopt(project.context, "digits").report.summary
    with pytest.raises(NotFoundError):
        adopt(project.context, "nothing")
    with pytest.raises(UsageError):
        adopt(project.context, "a/../b")


def test_a_run_that_is_gone_takes_only_what_it_knew(theirs: Project) -> None:
    import sqlite3

    connection = sqlite3.connect(theirs.database)
    with connection:
        connection.execute("UPDATE model_versions SET run_id = ? WHERE version = 2", ("f" * 32,))
    connection.close()

    result = adopt(theirs.context, "theirs/2")

    assert theirs.anew().resolve("theirs/5").params == {}
    assert "run of theirs/2 is gone" in result.warnings[0]


def test_an_unsealed_version_is_not_promoted(theirs: Project) -> None:
    with pytest.raises(ConflictError, match="not sealed") as caught:
        promote(theirs.context, "theirs/2", to="staging")
    assert "mlx adopt theirs/2" in caught.value.hint

    adopt(theirs.context, "theirs/2")
    version = theirs.catalog.resolve("theirs/5")
    theirs.catalog.record(version, evidence_of(version))
    promote(theirs.context, "theirs/5", to="staging", expect="none")
    assert theirs.catalog.holders("theirs")["staging"] == 5


def test_a_rollback_goes_back_to_the_version_that_worked_though_it_is_not_sealed(theirs: Project) -> None:
    adopt(theirs.context, "theirs/3")
    promote(theirs.context, "theirs/5", to="champion", expect="3")

    result = rollback(theirs.context, "theirs@champion", reason="worse")

    assert (result.data["before"], result.data["after"]) == (5, 3)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("show",), "mlx adopt theirs/2"),
        (("pull",), "mlx adopt theirs/2"),
        (("resolve",), "mlx show theirs/2"),
        (("diff", "theirs/1"), "mlx show theirs/2"),
    ],
)
def test_commands_work_with_an_unsealed_version_and_say_what_it_is(
    theirs: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], advice: str
) -> None:
    monkeypatch.chdir(theirs.folder)

    outcome = mlx(*words, "theirs/2", "--json")

    assert outcome.code == 0, outcome.err
    assert any(advice in warning for warning in outcome.document["warnings"])


def test_an_unsealed_version_is_measured_and_nothing_is_kept(
    theirs: Project, mlx: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(theirs.folder)
    rows = "\n".join(f"{index % 3},{index},1,2,{index % 3}" for index in range(30))
    Path("rows.csv").write_text(f"a,b,c,d,label\n{rows}\n")

    outcome = mlx("eval", "theirs/2", "--data", "rows.csv", "--gate", "accuracy>=0", "--json")

    assert outcome.code == 0, outcome.err
    assert outcome.data["evidence"] is None
    assert any("not sealed" in warning for warning in outcome.document["warnings"])
    assert not any(key.startswith("mlx.") for key in theirs.anew().resolve("theirs/2").tags)


# mlx register NAME URI


def test_a_version_is_registered_under_another_name_as_it_is(project: Project) -> None:
    result = register(project.context, "letters", "models:/digits/2", params={"lr": "9"}, parent="digits/1")

    source, copy = project.anew().resolve("digits/2"), project.anew().resolve("letters/1")
    assert copy.digest == source.digest == result.data["digest"]
    assert (copy.params, copy.metrics) == ({"lr": "9"}, dict(source.metrics))
    assert (copy.git_commit, copy.dataset_version) == (source.git_commit, source.dataset_version)
    assert (copy.parent, copy.tags["mlx.registered_from"]) == ("digits/1", "models:/digits/2")
    assert register(project.context, "letters", "models:/digits/2").data["created"] is False


def test_golden_cases_go_into_a_version_that_is_registered_again(project: Project, tmp_path: Path) -> None:
    golden = tmp_path / "golden.jsonl"
    golden.write_text('{"inputs": {"x": [[0, 0, 0, 0]]}, "outputs": {"label": ["2"]}}\n')

    register(project.context, "letters", "models:/digits/2", golden=golden)

    package = project.catalog.fetch(project.catalog.resolve("letters/1"))
    assert [case.generated for case in package.golden()] == [False]
    assert sha256_of(package.model_path) == sha256_of(project.folder / "model-2.onnx")


def test_the_model_of_a_run_is_registered_with_what_the_run_knows(theirs: Project) -> None:
    plain = Plain.read(theirs.folder)

    for number, uri in enumerate(
        (f"runs:/{plain.runs['2']}/bare/model-2.onnx", f"models:/{plain.models['3']}"), 2
    ):
        name = f"from-{number}"
        register(theirs.context, name, uri)
        version = theirs.anew().resolve(f"{name}/1")
        package = theirs.catalog.fetch(version)
        assert sha256_of(package.model_path) == sha256_of(theirs.folder / f"model-{number}.onnx")
        assert version.tags["mlx.registered_from"] == uri
    assert theirs.anew().resolve("from-2/1").params == {"lr": "0.1", "layers": "2"}


@pytest.mark.parametrize("source", [*LOCATIONS, "ftp://x/y", "models:/", "runs:/x", f"runs:/{'0' * 32}/../x"])
def test_a_hostile_source_is_refused_and_registers_nothing(project: Project, source: str) -> None:
    before = project.database.read_bytes()

    with pytest.raises(MlxError) as caught:
        register(project.context, "letters", source)

    # A word without a scheme is a path of the user's own, and may just not exist.
    assert caught.value.exit_code == 2 or (caught.value.exit_code == 3 and ":/" not in source)
    assert caught.value.message.isprintable()
    assert project.database.read_bytes() == before


def test_a_run_or_a_model_that_is_not_there_is_not_found(project: Project) -> None:
    for source in (f"runs:/{'0' * 32}/model", f"models:/m-{'0' * 32}", "models:/nothing/1", "nothing.onnx"):
        with pytest.raises(NotFoundError):
            register(project.context, "letters", source)
