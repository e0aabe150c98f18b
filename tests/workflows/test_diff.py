import shutil
from pathlib import Path

import pytest
from projects import Project, evidence_of, write_network

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.report import Table
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.package import seal
from mlx_platform.workflows.diff import diff


def changes(result, part: str) -> dict[str, tuple[object, object]]:
    return {
        change["name"]: (change["before"], change["after"])
        for change in result.data["parts"][part]["changed"]
    }


def test_two_versions_are_compared_part_by_part(project: Project) -> None:
    second = project.catalog.resolve("digits/2")
    project.catalog.record(second, evidence_of(second))

    result = diff(project.context, "digits/1", second.label, exit_code=True)

    assert result.exit_code == 5
    assert changes(result, "metrics")["f1"] == (0.91, 0.92)
    assert changes(result, "metrics")["evaluation.accuracy"] == (None, 0.95)
    assert changes(result, "metrics")["evidence.evaluation"] == (None, "pass")
    assert changes(result, "params") == {"lr": ("0.1", "0.2")}
    assert changes(result, "lineage") == {"dataset_version": ("2026-01", "2026-02")}
    assert set(changes(result, "files")) >= {"model.onnx", "size"}
    assert len(changes(result, "files")["model.onnx"][0]) == 64
    assert changes(result, "io") == changes(result, "environment") == {}
    (weights,) = result.data["parts"]["graph"]["changed"]
    assert (weights["name"], weights["note"]) == ("weights", "2 of 2 weights changed")
    tables = {section.title.partition(":")[0]: section for section in result.report.sections}
    assert set(tables) == {"metrics", "params", "lineage", "graph", "files"}
    assert isinstance(tables["metrics"], Table)
    assert tables["metrics"].rows[0] == ("f1", "0.91", "0.92", "+0.01 (+1.1%)")


@pytest.mark.parametrize("other", ["digits@production", "model-2.onnx", "./packages/2"])
def test_the_same_package_is_no_difference_however_it_is_named(
    project: Project, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")

    result = diff(project.context, "digits/2", other, exit_code=True)

    assert (result.verdict, result.exit_code, result.data["different"]) == (Verdict.PASS, 0, False)
    assert result.data["same_bytes"]
    assert result.report.summary.startswith("No difference between digits/2 and ")


def test_only_the_parts_that_were_named_are_compared(project: Project) -> None:
    result = diff(project.context, "digits/1", "digits/2", only=("io", "environment"), exit_code=True)

    assert set(result.data["parts"]) == {"io", "environment"}
    assert result.exit_code == 0
    with pytest.raises(UsageError) as caught:
        diff(project.context, "digits/1", "digits/2", only=("metric",))
    assert "metrics" in caught.value.hint
    with pytest.raises(NotFoundError):
        diff(project.context, "digits/1", "digits/9")


def test_what_a_file_has_not_is_undecided_only_when_it_was_asked_for(project: Project) -> None:
    path = str(project.folder / "model-1.onnx")

    assert diff(project.context, "digits/1", path, exit_code=True).exit_code == 0
    asked = diff(project.context, "digits/1", path, only=("metrics",), exit_code=True)
    assert asked.exit_code == 7
    assert asked.warnings == (f"Not compared: metrics. {path} is not registered.",)


def test_missing_bytes_leave_the_rest_and_are_never_a_pass(project: Project) -> None:
    shutil.rmtree(project.folder / "mlx-artifacts")

    whole = diff(project.context, "digits/1", "digits/2")
    inner = diff(project.context, "digits/1", "digits/2", only=("io", "graph"), exit_code=True)

    assert changes(whole, "metrics") == {"f1": (0.91, 0.92)}
    (warning,) = whole.warnings
    assert warning.startswith("Not compared: graph, files, environment. ")
    assert inner.data["parts"]["io"] == {"changed": [], "same": 3, "compared": True, "problem": ""}
    assert inner.exit_code == 7


def test_an_environment_that_cannot_be_read_is_not_compared(project: Project, tmp_path: Path) -> None:
    folder = shutil.copytree(project.folder / "packages" / "1", tmp_path / "package")
    (folder / "environment.lock").write_text("no = [TOML")
    seal(folder)

    result = diff(project.context, "digits/1", str(folder), only=("environment",), exit_code=True)

    assert (result.exit_code, result.data["parts"]["environment"]["compared"]) == (7, False)
    assert result.warnings == (
        f"Not compared: environment. The environment.lock of {folder} cannot be read.",
    )


def test_other_inputs_labels_and_operators_are_told(project: Project, tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    model = onnx.load(write_network(tmp_path / "other.onnx", 1.0))
    model.graph.node[0].attribute.append(helper.make_attribute("alpha", 0.5))
    model.graph.node[1].op_type = "LogSoftmax"
    model.graph.output[0].name = model.graph.node[1].output[0] = "logs"
    model.opset_import[0].version = 17
    onnx.save(model, tmp_path / "other.onnx")

    result = diff(project.context, "digits/1", str(tmp_path / "other.onnx"))

    graph = {change["name"]: change for change in result.data["parts"]["graph"]["changed"]}
    assert graph["operator Gemm"]["note"] == "1 set up differently"
    assert (graph["operator LogSoftmax"]["note"], graph["operator Softmax"]["note"]) == ("1 more", "1 fewer")
    assert (graph["opset ai.onnx"]["before"], graph["opset ai.onnx"]["difference"]) == (18, -1)
    assert "weights" not in graph
    assert changes(result, "io")["output logs"] == (None, "FP32 [?, 3]")


def test_what_nobody_can_tell_is_neither_the_same_nor_a_difference(project: Project) -> None:
    def verdict(part: str) -> int:
        return diff(project.context, "digits/1", "digits/2", only=[part], exit_code=True).exit_code

    same = {"mlx.dataset": "7", "mlx.params": "{"}
    for number in (1, 2):
        project.catalog.set_tags(project.catalog.resolve(f"digits/{number}"), same)
    assert (verdict("lineage"), verdict("params"), verdict("metrics")) == (0, 7, 5)
    project.catalog.move("digits", "production", 2, kind="promote", actor="ada")
    assert verdict("lineage") == 5
    project.catalog._backend.store.set_tags("mlx.journal.digits", 1, {"mlx.event": "x"})

    assert verdict("lineage") == 7
    warnings = diff(project.context, "digits/1", "digits/2", only=["lineage", "params"]).warnings
    assert any("Not compared in full: lineage" in text and "broken" in text for text in warnings)
    assert "Not compared: params. mlx.params of digits/1, mlx.params of digits/2 cannot be read." in warnings
