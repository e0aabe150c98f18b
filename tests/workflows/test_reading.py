"""`mlx drift` and `mlx consistency` over logs that other platforms wrote of the same model."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from linear_models import classifier, colours, pack

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.profile import build_profile
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package, with_file
from mlx_platform.workflows.consistency import check_consistency
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.drift import measure_drift

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
BASELINE, _ = colours(3000, seed=1)
ROWS, _ = colours(600, seed=2)
MOVED = ROWS + np.array([0, 1, 0], dtype=np.float32)
Log = Callable[..., Path]


def named(matrix: np.ndarray) -> dict[str, np.ndarray]:
    return {f"x{index}": matrix[:, index].astype(np.float64) for index in range(3)}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Package:
    package = pack(classifier(tmp_path_factory.mktemp("models") / "one", 5 * np.eye(3)))
    answers = Model.load(package, device="cpu").predict(named(BASELINE)).columns
    profile = build_profile(InputFeatures(package.spec, None)(named(BASELINE)), answers)
    return with_file(package, "baseline.json", profile.to_json())


@pytest.fixture(scope="module")
def model(package: Package) -> Model:
    return Model.load(package, device="cpu")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


def captured(number: int, rows: np.ndarray, answers: list[list[float]]) -> dict[str, Any]:
    text = "\n".join(",".join(str(float(cell)) for cell in row) for row in rows)
    return {
        "captureData": {
            "endpointInput": {"observedContentType": "text/csv", "data": text, "encoding": "CSV"},
            "endpointOutput": {
                "observedContentType": "application/json",
                "data": json.dumps({"predictions": answers}),
                "encoding": "JSON",
            },
        },
        "eventMetadata": {
            "eventId": f"e-{number}",
            "inferenceTime": rfc3339(NOON + timedelta(seconds=number)),
        },
    }


def inference_row(number: int, rows: np.ndarray, answers: list[list[float]]) -> dict[str, Any]:
    split = {"columns": ["x0", "x1", "x2"], "data": rows.astype(np.float64).tolist()}
    return {
        "databricks_request_id": f"e-{number}",
        "request_time": NOON + timedelta(seconds=number),
        "status_code": 200,
        "sampling_fraction": 1.0,
        "request": json.dumps({"dataframe_split": split}),
        "response": json.dumps({"predictions": answers}),
        "logging_error_codes": [],
        "served_entity_id": "colours-1",
    }


@pytest.fixture
def log(tmp_path: Path, model: Model) -> Log:
    """Write what a platform would have logged of the model's answers, three rows a request."""

    def log(form: str, matrix: np.ndarray, *, answers: str = "probabilities", scale: float = 1.0) -> Path:
        documents = []
        for number, rows in enumerate(np.split(matrix, len(matrix) // 3)):
            found = model.predict(named(rows)).columns[answers]
            served = (found * scale if found.dtype.kind == "f" else found).tolist()
            make = captured if form == "sagemaker" else inference_row
            documents.append(make(number, rows, served))
        folder = tmp_path / form
        folder.mkdir()
        if form == "sagemaker":
            lines = "\n".join(map(json.dumps, documents))
            (folder / "00-00.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            pq.write_table(pa.Table.from_pylist(documents), folder / "part.parquet")
        return folder

    return log


@pytest.mark.parametrize("form", ["sagemaker", "databricks"])
def test_drift_is_found_in_logs_of_others_and_not_where_there_is_none(context, package, log, form) -> None:
    same = measure_drift(context, str(package.root), traffic=log(form, ROWS))
    assert same.verdict is Verdict.PASS
    assert same.data["window"]["format"] == form
    assert same.data["window"]["rows"] == len(ROWS)
    assert {feature["name"] for feature in same.data["features"]} == {
        "x0",
        "x1",
        "x2",
        "label",
        "confidence",
        "entropy",
        "margin",
    }


def test_a_feature_that_moved_is_named(context, package, log) -> None:
    found = measure_drift(context, str(package.root), traffic=log("sagemaker", MOVED))
    assert found.verdict is Verdict.FAIL
    drifted = {feature["name"] for feature in found.data["features"] if feature["verdict"] == "drift"}
    assert "x1" in drifted
    assert not {"x0", "x2"} & drifted


def test_a_span_of_time_is_cut_out_of_a_foreign_log(context, package, log) -> None:
    since, until = rfc3339(NOON + timedelta(seconds=10)), rfc3339(NOON + timedelta(seconds=110))
    found = measure_drift(
        context, str(package.root), traffic=log("databricks", ROWS), since=since, until=until
    )
    assert found.data["window"]["rows"] == 300


def test_rows_without_names_are_compared_without_a_model_in_the_baselines_order(
    context, package, log, tmp_path
) -> None:
    pq.write_table(pa.table(named(BASELINE)), tmp_path / "train.parquet")
    found = measure_drift(context, baseline=tmp_path / "train.parquet", traffic=log("sagemaker", MOVED))
    drifted = {feature["name"] for feature in found.data["features"] if feature["verdict"] == "drift"}
    assert drifted == {"x1"}


@pytest.mark.parametrize("answers", ["probabilities", "label"])
@pytest.mark.parametrize("form", ["sagemaker", "databricks"])
def test_answers_that_another_platform_logged_are_replayed(context, package, log, form, answers) -> None:
    found = check_consistency(
        context, str(package.root), traffic=log(form, ROWS, answers=answers), log_format=form
    )
    assert found.data["requests"]["compared"] == 200
    assert found.data["requests"]["agreeing"] == 200


def test_answers_that_differ_are_found_in_a_foreign_log(context, package, log) -> None:
    found = check_consistency(context, str(package.root), traffic=log("sagemaker", ROWS, scale=0.99))
    assert found.verdict is Verdict.FAIL
    assert found.data["requests"]["agreeing"] == 0


def test_requests_without_their_answers_are_counted_and_only_compared_where_they_can_be(
    context, package, tmp_path
) -> None:
    folder = tmp_path / "captured"
    folder.mkdir()
    lines = [captured(number, row[None], []) for number, row in enumerate(ROWS)]
    for line in lines:
        del line["captureData"]["endpointOutput"]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    drift = measure_drift(context, str(package.root), traffic=folder)
    assert drift.data["window"]["unpaired"] == len(ROWS)
    assert {feature["verdict"] for feature in drift.data["features"] if feature["role"] == "input"} == {"ok"}
    replay = check_consistency(context, str(package.root), traffic=folder)
    assert replay.verdict is Verdict.UNDECIDED
    assert replay.data["requests"]["unpaired"] == len(ROWS)


def test_a_log_of_several_models_gets_a_warning(context, package, tmp_path) -> None:
    rows = [
        inference_row(number, row[None], [[1, 0, 0]]) | {"served_entity_id": f"colours-{number % 2}"}
        for number, row in enumerate(ROWS)
    ]
    (tmp_path / "table").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table" / "a.parquet")
    found = measure_drift(context, str(package.root), traffic=tmp_path / "table")
    assert any("colours-0, colours-1" in warning for warning in found.warnings)


def test_a_zone_or_format_that_does_not_exist_is_refused(context, package, log) -> None:
    folder = log("sagemaker", ROWS[:3])
    with pytest.raises(UsageError, match="Mars/Olympus"):
        measure_drift(context, str(package.root), traffic=folder, assume_tz="Mars/Olympus")
    with pytest.raises(UsageError, match="'seldon'"):
        check_consistency(context, str(package.root), traffic=folder, log_format="seldon")
