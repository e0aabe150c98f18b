from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from projects import Project

from mlx_platform.core.errors import MlxError, UndecidedError, UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.settings import load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.build import BuildOptions, build_package
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import BASELINE, SPEC
from mlx_platform.registry.version import Lineage, Version
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.quantize import quantize


@pytest.fixture
def context(own_home: Path) -> Context:
    return make_context(load_settings())


def register(project: Project, source: Path) -> Version:
    """Make a file `small/1` of a project."""
    package = build_package(source, project.folder / "built", BuildOptions(baseline=b'{"a": 1}')).package
    lineage = Lineage(dataset_version="v1", git_commit="abc1234", params={"layers": "2"})
    return project.catalog.register("small", package, lineage)[0]


def to_file(context: Context, source: Path, rows: tuple[Path, Path], output: Path, **options: Any) -> Result:
    return quantize(context, str(source), calibration=rows[0], data=rows[1], output=output, **options)


def test_a_version_that_stays_as_good_becomes_a_new_version(
    project: Project, digit_models, digit_rows, tmp_path: Path, scratch: Path
) -> None:
    context = project.context
    source = register(project, digit_models["perceptron"])

    result = quantize(
        context,
        "small/1",
        calibration=digit_rows[0],
        data=digit_rows[1],
        max_drop="2pp",
        calibration_method="entropy",
        report=tmp_path / "report",
    )

    assert result.verdict is Verdict.PASS
    assert list(scratch.iterdir()) == []
    version = context.catalog.resolve("small/2")
    assert result.data["version"]["ref"] == version.ref
    assert (version.parent, version.quantized, version.aliases) == ("small/1", True, ())
    assert version.tags["mlx.actor"] == context.actor
    assert (version.dataset_version, version.git_commit) == ("v1", "abc1234")
    assert version.metrics["accuracy"] == result.data["accuracy"]["after"]
    assert version.params["calibration_data"] == context.settings.written(digit_rows[0])
    assert version.params["calibration_method"] == "entropy"
    assert (tmp_path / "report" / "report.html").is_file()

    old, new = (context.catalog.fetch(each) for each in (source, version))
    assert (new.root / SPEC).read_bytes() == (old.root / SPEC).read_bytes()
    assert (new.root / BASELINE).read_bytes() == b'{"a": 1}'
    assert new.model_path.stat().st_size == result.data["size"]["after"] < old.model_path.stat().st_size / 2
    assert new.golden()
    assert Model.load(new).self_check() == []

    evidence = context.catalog.evidence(version)["quantization"]
    assert (evidence.verdict, evidence.digest) == ("pass", version.digest)
    assert evidence.numbers["accuracy"]["after"] == result.data["accuracy"]["after"]


def test_the_same_rows_again_give_the_version_that_is_there(
    project: Project, digit_models, digit_rows
) -> None:
    register(project, digit_models["perceptron"])
    results = [
        quantize(project.context, "small/1", calibration=digit_rows[0], data=digit_rows[1], max_drop="2pp")
        for _ in range(2)
    ]

    assert [result.data["created"] for result in results] == [True, False]
    assert [result.data["version"]["version"] for result in results] == [2, 2]
    assert len(project.catalog.versions("small")) == 2
    with pytest.raises(UndecidedError, match="already quantized"):
        quantize(project.context, "small/2", calibration=digit_rows[0], data=digit_rows[1])


def test_a_loss_beyond_the_limit_registers_nothing(
    project: Project, fragile: Path, fragile_rows, tmp_path: Path
) -> None:
    register(project, fragile)
    output = tmp_path / "out.onnx"

    result = quantize(
        project.context, "small/1", calibration=fragile_rows[0], data=fragile_rows[1], output=output
    )

    assert (result.verdict, result.exit_code) == (Verdict.FAIL, 5)
    assert result.data["version"] is None
    assert result.data["flips"]["lost"] > 100
    assert result.data["accuracy"]["before"] == 1
    assert result.data["accuracy"]["lower"] > 1
    assert "Nothing was registered" in result.report.summary
    assert len(project.catalog.versions("small")) == 1
    assert not output.exists()


def test_an_unregistered_file_is_quantized_to_a_file(
    context: Context, digit_models, digit_rows, tmp_path: Path, scratch: Path
) -> None:
    output = tmp_path / "small.onnx"

    result = to_file(context, digit_models["perceptron"], digit_rows, output, max_drop="2pp")

    assert result.verdict is Verdict.PASS
    assert result.data["version"] is None
    assert result.data["output"] == str(output)
    onnx.checker.check_model(output)
    assert output.stat().st_size == result.data["size"]["after"]
    assert not (tmp_path / "mlx.db").exists()
    assert list(scratch.iterdir()) == []


def test_too_few_rows_decide_nothing(
    context: Context, digit_models, digit_rows, write_rows, tmp_path: Path
) -> None:
    few = write_rows("few.parquet", digit_models["rest"][400:440], digit_models["labels"][400:440])

    result = to_file(context, digit_models["perceptron"], (digit_rows[0], few), tmp_path / "small.onnx")

    assert (result.verdict, result.exit_code) == (Verdict.UNDECIDED, 7)
    assert result.data["gates"][0]["rows_needed"] > 40
    assert "would probably decide" in result.report.checks[0].message
    assert not (tmp_path / "small.onnx").exists()


def test_a_speed_that_is_not_reached_fails(
    context: Context, digit_models, digit_rows, tmp_path: Path
) -> None:
    result = to_file(
        context,
        digit_models["perceptron"],
        digit_rows,
        tmp_path / "small.onnx",
        max_drop="2pp",
        min_speedup=500,
    )

    assert result.verdict is Verdict.FAIL
    accuracy, speed, _size = result.data["gates"]
    assert (accuracy["verdict"], speed["verdict"]) == ("pass", "fail")
    assert (speed["name"], speed["threshold"]) == ("speedup >= 500", 500)
    assert speed["measured"] < 500
    assert speed.keys() <= accuracy.keys()
    assert not (tmp_path / "small.onnx").exists()


def test_a_regression_is_judged_by_its_error(
    context: Context, digit_models, write_rows, tmp_path: Path
) -> None:
    rest, labels = digit_models["rest"], digit_models["labels"].astype(float)
    rows = write_rows("c.parquet", rest[:400]), write_rows("d.parquet", rest[400:], labels[400:])

    result = to_file(context, digit_models["regressor"], rows, tmp_path / "small.onnx")

    assert result.verdict is Verdict.PASS
    assert result.data["metric"] == "rmse"
    assert result.data["rmse"]["after"] == pytest.approx(result.data["rmse"]["before"], rel=0.02)
    assert 0 < result.data["relative_error"] < 0.05
    assert result.data["agreement"] is None
    assert result.data["flips"] is None


def test_random_calibration_rows_are_a_warning(
    context: Context, digit_models, digit_rows, write_rows, tmp_path: Path
) -> None:
    noise = write_rows("noise.parquet", np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32))

    result = to_file(context, digit_models["perceptron"], (noise, digit_rows[1]), tmp_path / "small.onnx")

    assert any("random" in warning for warning in result.warnings)
    assert result.data["calibration"]["coverage"]["share"] < 0.9


def test_a_larger_file_is_not_written_unless_it_was_asked_for(
    context: Context, fragile: Path, fragile_rows, tmp_path: Path
) -> None:
    result = to_file(context, fragile, fragile_rows, tmp_path / "small.onnx", max_drop="99pp")

    assert result.data["size"]["ratio"] > 1
    assert result.verdict is Verdict.FAIL
    assert result.data["gates"][-1]["verdict"] == "fail"
    assert not (tmp_path / "small.onnx").exists()

    result = to_file(context, fragile, fragile_rows, tmp_path / "small.onnx", max_size_ratio=100.0)
    assert result.data["gates"][-1]["verdict"] == "pass"


def test_trees_are_refused_and_leave_nothing_behind(
    context: Context, digit_models, digit_rows, tmp_path: Path, scratch: Path
) -> None:
    with pytest.raises(UndecidedError, match="TreeEnsembleClassifier") as caught:
        to_file(context, digit_models["forest"], digit_rows, tmp_path / "small.onnx")

    assert caught.value.exit_code == 7
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "small.onnx").exists()


def test_a_bad_calibration_value_is_named(
    context: Context, digit_models, digit_rows, write_rows, tmp_path: Path
) -> None:
    pixels = digit_models["rest"][:200].copy()
    pixels[150, 3] = np.inf

    with pytest.raises(UsageError, match=r"bad.parquet: column 'p03' holds infinity in row 150"):
        to_file(
            context,
            digit_models["perceptron"],
            (write_rows("bad.parquet", pixels), digit_rows[1]),
            tmp_path / "small.onnx",
        )


def test_a_column_that_is_not_there_is_named(
    context: Context, digit_models, digit_rows, tmp_path: Path
) -> None:
    folder = tmp_path / "named"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(digit_models["perceptron"].read_bytes())
    names = [f"p{index:02d}" for index in range(63)] + ["p99"]
    (folder / SPEC).write_text(
        f'format = 1\ntask = "classification"\n\n[[pre]]\nstep = "columns"\nnames = {names}\n'
    )

    with pytest.raises(UsageError, match=r"calibration.parquet has no column 'p99'"):
        to_file(context, folder, digit_rows, tmp_path / "small.onnx")


def test_a_model_without_a_task_cannot_be_judged(
    context: Context, fragile: Path, fragile_rows, tmp_path: Path
) -> None:
    (fragile / SPEC).write_text('format = 1\ntask = "tensors"\n')

    with pytest.raises(UndecidedError, match="no task"):
        to_file(context, fragile, fragile_rows, tmp_path / "small.onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_drop": "1"}, "has no unit"),
        ({"min_speedup": -1.0}, "cannot be asked for"),
        ({"calibration_method": "percentile:5"}, "cannot hold"),
        ({"output": Path("folder")}, "no name for an ONNX file"),
        ({"output": Path("model.txt")}, "no name for an ONNX file"),
        ({"output": None}, "not registered"),
    ],
)
def test_flags_that_cannot_be_used_are_refused(
    context: Context, digit_models, digit_rows, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    asked: dict[str, Any] = {"output": Path("small.onnx"), **options}

    with pytest.raises(UsageError, match=message):
        to_file(context, digit_models["perceptron"], digit_rows, **asked)


def test_the_source_is_never_overwritten(context: Context, digit_models, digit_rows, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(digit_models["perceptron"].read_bytes())

    with pytest.raises(UsageError, match="is the model that is being quantized"):
        to_file(context, model, digit_rows, Path("./model.onnx"))


def test_an_output_that_cannot_be_written_is_a_sentence(
    context: Context, digit_models, digit_rows, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(MlxError, match="Cannot write"):
        to_file(
            context, digit_models["perceptron"], digit_rows, tmp_path / "file" / "small.onnx", max_drop="2pp"
        )


def test_the_command_line_says_what_came_of_it(mlx, digit_models, digit_rows) -> None:
    outcome = mlx(
        "quantize",
        digit_models["perceptron"],
        "--calibration",
        digit_rows[0],
        "--data",
        digit_rows[1],
        "--max-drop",
        "2pp",
        "-o",
        "small.onnx",
        "--json",
    )

    assert outcome.code == 0
    assert outcome.document["verdict"] == "pass"
    assert outcome.data["nodes"]["quantized"] == 3
    assert outcome.data["latency_ms"]["after"] > 0
    assert outcome.data["latency_ms"]["batch"]["rows"] == 32
    assert Path("small.onnx").stat().st_size == outcome.data["size"]["after"]


def test_a_comparison_that_shows_nothing_is_no_pass(
    context: Context, digit_models, digit_rows, write_rows, tmp_path: Path
) -> None:
    rest, labels = digit_models["rest"][400:], digit_models["labels"][400:]
    shuffled = write_rows("shuffled.parquet", rest, np.random.default_rng(0).permutation(labels).astype(str))
    one = write_rows("one.parquet", rest[labels == 3], labels[labels == 3].astype(str))

    for data in (shuffled, one):
        with pytest.raises(UndecidedError, match="not measurably better than one and the same answer"):
            to_file(context, digit_models["perceptron"], (digit_rows[0], data), tmp_path / "small.onnx")
    assert not (tmp_path / "small.onnx").exists()


def test_a_few_rows_many_times_over_decide_nothing(
    context: Context, digit_models, digit_rows, write_rows, tmp_path: Path
) -> None:
    rest, labels = digit_models["rest"], digit_models["labels"].astype(str)
    again = np.repeat(np.arange(400, 420), 100)
    data = write_rows("again.parquet", rest[again], labels[again])

    result = to_file(
        context, digit_models["perceptron"], (digit_rows[0], data), tmp_path / "small.onnx", max_evals=0
    )

    assert (result.verdict, result.exit_code) == (Verdict.UNDECIDED, 7)
    assert (result.data["rows"], result.data["independent_rows"]) == (2000, 20)
    assert any("20 different inputs" in warning for warning in result.warnings)
    assert not (tmp_path / "small.onnx").exists()


def test_constant_rows_to_calibrate_on_are_called_out_and_break_nothing(
    context: Context, digit_models, digit_rows, write_rows, tmp_path: Path
) -> None:
    constant = write_rows("constant.parquet", np.full((300, 64), 5.0, np.float32))

    result = to_file(
        context, digit_models["perceptron"], (constant, digit_rows[1]), tmp_path / "small.onnx", max_evals=0
    )

    assert result.verdict is Verdict.FAIL
    assert any("Only 1 different calibration row" in warning for warning in result.warnings)
    assert any("do not look like" in warning for warning in result.warnings)
