"""Whole runs of `mlx quantize` with more than one candidate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from projects import Project
from support import RunCommand

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.settings import load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.build import BuildOptions, build_package
from mlx_platform.inference.model import Model
from mlx_platform.registry.version import Lineage
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.gate import gate
from mlx_platform.workflows.quantization.choosing import SHARES, confidence_of
from mlx_platform.workflows.quantize import quantize


@pytest.fixture
def context(own_home: Path) -> Context:
    return make_context(load_settings())


def to_file(context: Context, source: Path, rows: tuple[Path, Path], **options: Any) -> Result:
    options = {"output": Path("small.onnx"), **options}
    return quantize(context, str(source), calibration=rows[0], data=rows[1], **options)


def stored_as_float(path: Path) -> set[str]:
    """The matrices of a model that are still of float32."""
    tensors = onnx.load(path).graph.initializer
    return {each.name for each in tensors if each.data_type == onnx.TensorProto.FLOAT and len(each.dims) > 1}


def test_the_layer_that_does_the_harm_stays_float_and_the_rest_passes(
    project: Project, partly_fragile: Path, fragile_rows, tmp_path: Path
) -> None:
    package = build_package(partly_fragile, project.folder / "built", BuildOptions()).package
    project.catalog.register("partly", package, Lineage())

    result = quantize(
        project.context,
        "partly/1",
        calibration=fragile_rows[0],
        data=fragile_rows[1],
        report=tmp_path / "report",
    )

    assert result.verdict is Verdict.PASS
    (chosen,) = [candidate for candidate in result.data["candidates"] if candidate["chosen"]]
    assert chosen["in_float32"] == ["fragile"]
    assert result.data["search"]["layers"][0]["node"] == "fragile"
    assert result.data["search"]["stopped"] is None
    assert result.data["size"]["ratio"] < 0.5
    version = project.catalog.resolve("partly/2")
    small = project.catalog.fetch(version)
    assert stored_as_float(small.model_path) == {"small", "narrow"}
    assert Model.load(small).self_check() == []
    judged = project.catalog.evidence(version)["quantization"].judged
    assert (judged["limit"], judged["tolerated"], judged["tolerated_amount"]) == ("max_drop", "1pp", 0.01)
    page = (tmp_path / "report" / "report.html").read_text()
    for title in ("Candidates", "Layers left in float32", "divergence over size", "Repeat it"):
        assert title in page


def test_the_looks_together_err_as_often_as_one() -> None:
    levels = [1 - confidence_of(look, several=True) for look in range(len(SHARES))]

    assert sum(levels) == pytest.approx(1 - confidence_of(0, several=False))


def test_without_a_search_what_failed_is_kept_only_where_that_was_asked_for(
    context: Context, partly_fragile: Path, fragile_rows
) -> None:
    result = to_file(context, partly_fragile, fragile_rows, max_evals=0, keep_failed=True)

    assert (result.verdict, result.exit_code) == (Verdict.FAIL, 5)
    assert (result.data["looks"], result.data["confidence"], result.data["search"]) == (1, 0.95, None)
    assert result.data["version"] is None
    assert Path("small.onnx").stat().st_size == result.data["size"]["after"]
    assert "small.onnx was kept" in result.report.summary
    with pytest.raises(UsageError, match="needs a place"):
        to_file(context, partly_fragile, fragile_rows, keep_failed=True, output=None)


def test_a_size_that_is_not_reached_fails_on_the_command_line_and_is_not_searched_for(
    mlx: RunCommand, partly_fragile: Path, fragile_rows
) -> None:
    outcome = mlx(
        "quantize",
        partly_fragile,
        *("--calibration", fragile_rows[0], "--data", fragile_rows[1], "-o", "small.onnx"),
        *("--method", "static", "--target", "x86-avx2", "--max-size-ratio", "0.01", "--max-evals", "50"),
        *("--max-minutes", "5", "--resume", "state", "--keep-failed", "--json"),
    )

    assert outcome.code == 5
    assert outcome.data["search"] is None
    size = outcome.data["gates"][1]
    assert (size["name"], size["verdict"]) == ("size_ratio <= 0.01", "fail")
    assert Path("small.onnx").is_file()
    assert Path("state/search.json").is_file()


def test_a_search_goes_on_where_it_was_ended(
    context: Context, partly_fragile: Path, fragile_rows, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    first = to_file(context, partly_fragile, fragile_rows, max_evals=1, resume=state)
    assert first.data["search"]["stopped"] == "evals"
    assert any("--resume" in warning for warning in first.warnings)
    assert first.verdict is Verdict.FAIL
    assert not Path("small.onnx").exists()
    left = json.loads((state / "search.json").read_text())
    assert len(left["measured"]) == 1

    again = to_file(context, partly_fragile, fragile_rows, resume=state)

    assert again.verdict is Verdict.PASS
    seen = json.loads((state / "search.json").read_text())
    assert len(seen["measured"]) == again.data["search"]["measured"]
    assert len(seen["looks"]) == 2
    with pytest.raises(UsageError, match="another model, other rows or options"):
        to_file(context, partly_fragile, fragile_rows, max_drop="2pp", resume=state)
    # Whatever happened in between, the rows that judge are not looked at a fourth time.
    (state / "search.json").write_text(json.dumps(left | {"looks": ["a", "b", "c"]}))
    with pytest.raises(UndecidedError, match="as many candidates as they may"):
        to_file(context, partly_fragile, fragile_rows, resume=state)


def test_all_methods_are_measured_and_the_best_of_them_chosen(
    context: Context, digit_models, digit_rows, tmp_path: Path
) -> None:
    result = to_file(context, digit_models["perceptron"], digit_rows, method="auto", max_drop="2pp")

    assert result.verdict is Verdict.PASS
    methods = {candidate["method"] for candidate in result.data["candidates"]}
    assert methods == {"static-int8", "dynamic-int8", "fp16", "int4"}
    assert sum(candidate["chosen"] for candidate in result.data["candidates"]) == 1
    assert 1 <= result.data["looks"] <= len(SHARES)
    assert Path("small.onnx").stat().st_size == result.data["size"]["after"]
    assert "--method auto" in result.data["command"]


def test_a_method_alone_makes_a_version_that_counts_by_the_limit_of_the_settings(
    project: Project, digit_models, digit_rows
) -> None:
    package = build_package(digit_models["perceptron"], project.folder / "built", BuildOptions()).package
    project.catalog.register("small", package, Lineage())

    result = quantize(
        project.context,
        "small/1",
        calibration=digit_rows[0],
        data=digit_rows[1],
        method="dynamic",
        max_drop="2pp",
    )

    assert result.verdict is Verdict.PASS
    assert 0.25 < result.data["size"]["ratio"] < 0.45
    assert (result.data["looks"], result.data["confidence"]) == (1, 0.95)
    version = project.catalog.resolve("small/2")
    assert version.quantized
    assert version.params["quantization"] == result.data["method"] == "dynamic-int8"

    def answer(limit: str) -> dict[str, Any]:
        overrides = {"quantization.max_drop": limit} if limit else None
        settings = load_settings(start=project.folder, overrides=overrides)
        gates = gate(make_context(settings), "small/2", to="production").data["gates"]
        return next(entry for entry in gates if entry["name"] == "quantization")

    assert answer("2pp")["verdict"] == "pass"
    assert answer("")["verdict"] == answer("1pp")["verdict"] == "undecided"
    assert "1pp is what may be lost now" in answer("1pp")["message"]


def test_rows_to_compare_candidates_on_judge_nothing(
    context: Context, partly_fragile: Path, fragile_rows
) -> None:
    from mlx_platform.workflows.quantization.rows import read_rows

    rows = read_rows(context.settings.evaluation, *fragile_rows, None, ())

    judged = {tuple(row) for row in np.column_stack(list(rows.judged.values()))}
    searched = {tuple(row) for row in np.column_stack(list(rows.search.columns.values()))}
    assert len(searched) == 256
    assert not judged & searched


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "statc"}, "no method 'statc'"),
        ({"target": "x86"}, "no target 'x86'"),
        ({"max_evals": -1}, "cannot be negative"),
        ({"max_minutes": 0.0}, "must be a positive number"),
        ({"max_minutes": float("nan")}, "must be a positive number"),
        ({"max_size_ratio": 0.0}, "cannot be asked for"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    context: Context, partly_fragile: Path, fragile_rows, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        to_file(context, partly_fragile, fragile_rows, **options)
