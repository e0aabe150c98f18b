"""One version answering in two ways: models that do not care, and models that do."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from linear_models import classifier, pack, write_source
from onnx import TensorProto, helper
from projects import Project
from simulated_gpu import VARIABLE, Gpus, simulated_runtime

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference import session
from mlx_platform.registry.version import QUANTIZED, Lineage
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.crosscheck import pairs
from mlx_platform.workflows.crosscheck.check import Origin, cross_check
from mlx_platform.workflows.crosscheck.pairs import Wanted
from mlx_platform.workflows.subject import open_model

PLAIN = 'format = 1\ntask = "tensors"\n'
CENTRED = [
    helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
    helper.make_node("Sub", ["x", "mean"], ["y"]),
]
RANDOM = [
    helper.make_node("RandomNormalLike", ["x"], ["noise"]),
    helper.make_node("Greater", ["x", "limit"], ["far"]),
    helper.make_node("Cast", ["far"], ["some"], to=TensorProto.FLOAT),
    helper.make_node("Mul", ["noise", "some"], ["far_noise"]),
    helper.make_node("Add", ["x", "far_noise"], ["y"]),
]  # of large numbers only: what is random everywhere is no package
DOUBLED = [helper.make_node("Add", ["x", "x"], ["y"])]


@pytest.fixture
def context(tmp_path) -> Context:
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


@pytest.fixture
def rows(tmp_path) -> Path:
    path = tmp_path / "rows.parquet"
    values = np.random.default_rng(3).normal(size=(600, 3)).astype(np.float32)
    pq.write_table(pa.table({f"x{index}": values[:, index] for index in range(3)}), path)
    return path


def checked(context, package, rows, *kinds):
    return cross_check(context, str(package.root), Wanted(kinds), Origin(data=rows))


def verdicts(result):
    return {check["check"]: check["verdict"] for check in result.data["checks"]}


def made(tmp_path, nodes, **weights):
    return pack(write_source(tmp_path / "source", nodes, weights, PLAIN, 3, ("y", 3)))


def test_a_model_that_minds_neither_batch_nor_time_passes(context, tmp_path, rows):
    result = checked(context, pack(classifier(tmp_path / "one", np.eye(3))), rows, "batch", "repeat")

    assert verdicts(result) == {"batch": "pass", "repeat": "pass"}
    assert [check["compared"] for check in result.data["checks"]] == [480, 480]
    assert result.verdict is Verdict.PASS


def test_a_statistic_of_the_batch_is_found(context, tmp_path, rows):
    result = checked(context, made(tmp_path, CENTRED), rows, "batch", "repeat")

    assert verdicts(result) == {"batch": "fail", "repeat": "pass"}
    batch = result.data["checks"][0]
    assert batch["agreeing"] < 10
    assert batch["reasons"].keys() == {"value"}
    assert "depends on the rows that share its run" in batch["message"]


def test_random_numbers_are_found(context, tmp_path):
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({f"x{index}": np.linspace(0, 4000, 600) for index in range(3)}), path)
    result = checked(context, made(tmp_path, RANDOM, limit=np.float32(1000)), path, "repeat")

    assert verdicts(result) == {"repeat": "fail"}
    assert "not deterministic" in result.data["checks"][0]["message"]
    assert result.data["checks"][0]["diverging_stage"] == "logits"
    assert result.exit_code == 5


def test_a_device_that_is_not_there_is_no_pass(context, tmp_path, rows):
    result = checked(context, made(tmp_path, DOUBLED), rows, "device", "repeat")

    assert verdicts(result) == {"repeat": "pass", "device": "undecided"}
    assert result.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(("state", "verdict"), [("well", "pass"), ("lost", "fail")])
def test_a_device_that_is_there_is_compared_with_the_processor(
    context, tmp_path, rows, monkeypatch, state, verdict
):
    gpus = Gpus(tmp_path / "gpus")
    monkeypatch.setenv(VARIABLE, str(gpus.path))
    monkeypatch.setattr(session, "runtime", simulated_runtime)
    package = made(tmp_path, DOUBLED)
    if state == "lost":  # as soon as the model is there
        monkeypatch.setattr(pairs, "open_model", lambda *args, **kind: lose(gpus, open_model(*args, **kind)))
    result = checked(context, package, rows, "device")

    (check,) = result.data["checks"]
    assert (check["verdict"], check["right"]) == (verdict, "on cuda")
    assert check["reasons"] == ({} if verdict == "pass" else {"unparsable": check["compared"]})


def lose(gpus, model):
    if model.session.device != "cpu":
        gpus.set(cuda="lost")
    return model


def test_few_rows_are_too_few(context, tmp_path, rows):
    package = made(tmp_path, DOUBLED)
    result = cross_check(context, str(package.root), Wanted(("repeat",)), Origin(data=rows, sample=20))

    assert verdicts(result) == {"repeat": "undecided"}
    assert result.data["checks"][0]["compared"] == 20


def test_requests_that_neither_side_answers_do_not_count(context, tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({f"x{index}": pa.array([1.0] * 299 + [None]) for index in range(3)}), path)
    result = checked(context, pack(classifier(tmp_path / "one", np.eye(3))), path, "repeat")

    (check,) = result.data["checks"]
    assert (check["compared"] + check["unanswered"], check["unanswered"]) == (240, 1)
    assert check["agreeing"] == check["compared"]
    (warning,) = result.warnings
    assert warning.startswith("repeat: 1 request that neither side answers, and that do not count: ")
    assert "x0" in warning


@pytest.mark.parametrize("weights", [np.eye(3), np.eye(3)[::-1]])
def test_two_versions_agree_or_do_not(context, tmp_path, rows, weights):
    one, other = (
        pack(classifier(tmp_path / name, 5 * matrix)) for name, matrix in (("a", np.eye(3)), ("b", weights))
    )
    result = cross_check(context, str(one.root), Wanted(against=str(other.root)), Origin(data=rows))
    same = np.array_equal(weights, np.eye(3))

    assert verdicts(result) == {"against": "pass" if same else "fail"}
    assert result.data["checks"][0]["outputs"]["probabilities"]["rows"].keys() == (
        set() if same else {"total_variation"}
    )


def test_what_only_one_side_answers_disagrees_and_is_told_why(context, tmp_path, rows):
    one = pack(classifier(tmp_path / "one", np.eye(3)))
    other = pack(classifier(tmp_path / "other", np.eye(4)[:, :3]))
    result = cross_check(context, str(one.root), Wanted(against=str(other.root)), Origin(data=rows))

    (check,) = result.data["checks"]
    assert (check["verdict"], check["agreeing"]) == ("fail", 0)
    assert check["reasons"] == {"unparsable": 480}
    assert result.warnings == (
        "against: 480 requests that only one side answers: The column 'x3' is missing.",
    )


@pytest.fixture
def quantized(project: Project) -> Project:
    """A project with version 1 once more, registered as if it had been quantized from it."""
    lineage = Lineage(
        dataset_version="d",
        dataset_fingerprint="",
        git_commit="0" * 40,
        params={},
        metrics={},
        parent="digits/1",
        tags={QUANTIZED: "dynamic"},
    )
    project.catalog.register("digits", project.variant("int8"), lineage)
    return project


def test_the_quantized_form_is_found_from_either_side(quantized, tmp_path):
    path = tmp_path / "four.parquet"
    values = np.random.default_rng(3).normal(size=(600, 4)).astype(np.float32)
    pq.write_table(pa.table({f"c{index}": values[:, index] for index in range(4)}), path)

    for ref, other in (("digits/1", "digits/4"), ("digits/4", "digits/1")):
        (check,) = cross_check(quantized.context, ref, Wanted(("int8",)), Origin(data=path)).data["checks"]
        assert (check["verdict"], check["right"]) == ("pass", other)


def test_without_a_quantized_form_int8_cannot_be_told(context, tmp_path, rows):
    result = checked(context, made(tmp_path, DOUBLED), rows, "int8")

    assert verdicts(result) == {"int8": "undecided"}
    assert result.exit_code == 7


@pytest.mark.parametrize(
    ("wanted", "origin", "error"),
    [
        (Wanted(("colour",)), Origin(data=Path("rows.parquet")), UsageError),
        (Wanted(("batch",)), Origin(), UsageError),
        (Wanted(("batch",)), Origin(traffic=Path("a"), data=Path("b")), UsageError),
        (Wanted(("batch",)), Origin(data=Path("nowhere.parquet")), NotFoundError),
        (Wanted(("batch",)), Origin(traffic=Path("nowhere")), NotFoundError),
        (Wanted(("batch",)), Origin(data=Path("rows.parquet"), since="24h"), UsageError),
        (Wanted(offline=Path("rows.parquet")), Origin(data=Path("rows.parquet")), UsageError),
        (Wanted(against="nobody/1"), Origin(data=Path("rows.parquet")), NotFoundError),
    ],
)
def test_what_cannot_be_asked_is_refused(context, tmp_path, wanted, origin, error):
    with pytest.raises(error):
        cross_check(context, str(made(tmp_path, DOUBLED).root), wanted, origin)


def test_a_file_without_rows_is_no_pass(context, tmp_path):
    path = tmp_path / "none.parquet"
    pq.write_table(pa.table({f"x{index}": pa.array([], pa.float32()) for index in range(3)}), path)
    with pytest.raises(UndecidedError):
        checked(context, made(tmp_path, DOUBLED), path, "repeat")


def test_a_report_shows_every_check(context, tmp_path, rows):
    package = made(tmp_path, CENTRED)
    cross_check(
        context,
        str(package.root),
        Wanted(("batch", "repeat")),
        Origin(data=rows),
        report=tmp_path / "report",
        junit=tmp_path / "junit.xml",
    )

    page = (tmp_path / "report" / "report.html").read_text()
    assert "batch: Outputs" in page
    assert (tmp_path / "junit.xml").read_text().count("<testcase") == 2
