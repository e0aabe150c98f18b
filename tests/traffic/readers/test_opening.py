"""Which log it is, and that nothing in one stops its reader but an error of our own."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_platform.core.errors import MlxError, NotFoundError, UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.readers.opening import FORMATS, Reading, log_format, open_log
from mlx_platform.traffic.readers.signature import Signature
from mlx_platform.traffic.rows import row_batches

SIGNATURE = Signature(
    columns=("age", "rate"),
    inputs=(TensorSpec("x", "FP32", (None, 2)),),
    outputs=(TensorSpec("p", "FP32", (None, 2)),),
    task="classification",
    labels=("no", "yes"),
)
SAMPLES: dict[str, dict[str, Any]] = {
    "sagemaker": {
        "captureData": {
            "endpointInput": {"observedContentType": "text/csv", "data": "41,2", "encoding": "CSV"},
            "endpointOutput": {"observedContentType": "text/csv", "data": "0.2,0.8", "encoding": "CSV"},
        },
        "eventMetadata": {"eventId": "7d0c", "inferenceTime": "2026-03-08T06:59:58Z"},
    },
    "kserve": {
        "id": "3b1f-0007",
        "reqType": "org.kubeflow.serving.inference.request",
        "contentType": "application/json",
        "bytes": "eyJpbnN0YW5jZXMiOltbNi4xLDIuOF1dfQ==",
        "metadata": '{"X-Request-Id":["r-771"]}',
    },
    "databricks": {
        "databricks_request_id": "0d1e",
        "request_time": "2026-03-08T06:59:58.123Z",
        "status_code": 200,
        "sampling_fraction": 0.25,
        "request": '{"dataframe_split":{"columns":["age","rate"],"data":[[41,0.375]]}}',
        "response": '{"predictions":["yes"]}',
        "logging_error_codes": [],
    },
    "openinference": {
        "name": "embed",
        "start_time": "2026-03-08T06:59:58Z",
        "attributes": {
            "openinference.span.kind": "EMBEDDING",
            "input.value": "refund please",
            "embedding.embeddings.0.embedding.vector": [0.03, -0.77],
        },
    },
    "triton": {
        "id": 9,
        "activity": "TENSOR_QUEUE_INPUT",
        "tensor": {"name": "x", "data": "1.5,2", "shape": "1,2", "dtype": "FP32"},
    },
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SLOW_DISK = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def read_through(path: Path, form: str | None = None) -> LogStats:
    """Read a log as the commands do, down to its columns."""
    records, stats = open_log(path, Reading(form, signature=SIGNATURE))
    for batch in row_batches(records, stats):
        assert batch.rows > 0
    return stats


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.gz", "log"])
def test_a_log_is_known_by_what_it_holds(tmp_path: Path, name: str, suffix: str) -> None:
    content = json.dumps(SAMPLES[name]).encode()
    path = tmp_path / "2026" / f"part.{suffix}"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    assert log_format(tmp_path) == log_format(path) == name
    stats = read_through(tmp_path)
    assert (stats.format, stats.records, stats.share_usable) == (name, 1, 1.0)


def test_every_format_has_a_sample_here() -> None:
    assert set(FORMATS) == {"mlx", *SAMPLES}


def test_data_files_are_no_logs(tmp_path: Path) -> None:
    rows = [{"id": 1, "type": "a", "request": "x", "age": 4}]
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows[0]))
    (tmp_path / "rows.csv").write_text("id,type\n1,a\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert {log_format(path) for path in (tmp_path, *tmp_path.iterdir())} == {None}


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sagmaker") as caught:
        open_log(tmp_path, Reading("sagmaker"))
    assert "sagemaker" in caught.value.hint


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        open_log(tmp_path / "none", Reading("kserve"))


def test_links_hidden_files_and_other_kinds_are_left_aside(tmp_path: Path) -> None:
    line = json.dumps(SAMPLES["sagemaker"])
    (tmp_path / "a.jsonl").write_text(line)
    (tmp_path / "_SUCCESS").write_text("no log")
    (tmp_path / ".b.jsonl.crc").write_bytes(b"\0\1")
    (tmp_path / "notes.md").write_text("no log either")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
    stats = read_through(tmp_path)
    assert (stats.segments, stats.records, stats.unreadable) == (1, 1, 0)


def test_a_log_that_names_several_models_counts_them(tmp_path: Path) -> None:
    rows = [SAMPLES["databricks"] | {"databricks_request_id": n, "served_entity_id": f"m-{n}"} for n in "12"]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_through(tmp_path).origins == {"m-1": 1, "m-2": 1}


@SLOW_DISK
@given(
    content=st.binary(max_size=400),
    form=st.sampled_from([*SAMPLES, None]),
    suffix=st.sampled_from(["jsonl", "json", "csv", "parquet", "jsonl.gz", "json.zst"]),
)
def test_no_bytes_stop_a_reader(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, form: str | None, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("bytes") / f"a.{suffix}"
    path.write_bytes(content)
    try:
        stats = read_through(path, form)
    except MlxError:
        return
    assert 0 <= stats.share_usable <= 1
    assert path.read_bytes() == content


@SLOW_DISK
@given(name=st.sampled_from(list(SAMPLES)), data=st.data())
def test_no_value_in_any_field_stops_a_reader(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    document = json.loads(json.dumps(SAMPLES[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = document
        while True:
            key = data.draw(st.sampled_from(sorted(at)))
            if isinstance(at[key], dict) and at[key] and data.draw(st.booleans()):
                at = at[key]
                continue
            at[key] = data.draw(JSON_VALUES)
            break
    path = tmp_path_factory.mktemp("values") / "a.jsonl"
    path.write_text(json.dumps(document))
    try:
        stats = read_through(path, name)
    except MlxError:
        return
    accounted = stats.records + stats.unreadable + stats.beside
    assert accounted >= 1 or name == "triton"


@SLOW_DISK
@given(
    body=JSON_VALUES, kind=st.sampled_from(["application/json", "text/csv", "text/plain", "image/png", ""])
)
def test_no_body_stops_a_reader(tmp_path_factory: pytest.TempPathFactory, body: Any, kind: str) -> None:
    captured = json.loads(json.dumps(SAMPLES["sagemaker"]))
    for side in captured["captureData"].values():
        side |= {"data": json.dumps(body), "encoding": "JSON", "observedContentType": kind}
    event = SAMPLES["kserve"] | {"bytes": json.dumps(body), "contentType": kind}
    for name, document in (("sagemaker", captured), ("kserve", event)):
        path = tmp_path_factory.mktemp("bodies") / "a.jsonl"
        path.write_text(json.dumps(document))
        stats = read_through(path, name)
        assert stats.records + stats.unreadable >= 1
