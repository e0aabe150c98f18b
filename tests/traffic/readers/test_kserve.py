import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.readers.signature import Signature

IRIS = Signature(
    inputs=(TensorSpec("x", "FP32", (None, 2)),),
    outputs=(TensorSpec("probabilities", "FP32", (None, 3)),),
    task="classification",
    labels=("0", "1", "2"),
    model="iris",
    version="1",
    digest="d" * 64,
)
KIND = "org.kubeflow.serving.inference."


def b64(content: Any) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.b64encode(raw).decode()


def blob(key: str, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    return {
        "id": key,
        "reqType": KIND + kind,
        "contentType": "application/json",
        "bytes": b64(content),
        "inferenceService": "iris",
        "namespace": "prod",
        "component": "predictor",
        "endpoint": "default",
        "metadata": '{"X-Request-Id":["r-771"]}',
    } | more


def event(key: str, kind: str, content: Any, second: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": key,
        "type": KIND + kind,
        "source": "http://localhost:9081/",
        "time": f"2026-03-08T06:59:{second:02}.5Z",
        "datacontenttype": "application/json",
        "inferenceservicename": "iris",
        "namespace": "prod",
        "data": content,
    } | more


REQUEST, ANSWER = {"instances": [[6.1, 2.8]]}, {"predictions": [2]}


def test_a_blob_of_the_request_and_one_of_the_answer_become_a_record(write, read) -> None:
    write([blob("3b1f-0007", "response", ANSWER)], "prod/iris/3b1f-0007-response.json")
    write([blob("3b1f-0007", "request", REQUEST)], "prod/iris/3b1f-0007-request.json")
    (record,), stats = read(IRIS)
    assert record.inputs == {"x": {"datatype": "FP64", "shape": [1, 2], "data": [6.1, 2.8]}}
    assert record.outputs == {"label": {"datatype": "BYTES", "shape": [1], "data": ["2"]}}
    assert (record.request_id, record.server_id) == ("r-771", "prod/iris/predictor/default")
    assert (stats.format, stats.segments, stats.records, stats.unpaired) == ("kserve", 2, 1, 0)


def test_blobs_keep_no_time_so_no_span_can_be_cut_out_of_them(write, read) -> None:
    write([blob("1", "request", REQUEST), blob("1", "response", ANSWER)])
    with pytest.raises(UsageError, match="no time of day"):
        read(IRIS, since=datetime(2026, 3, 8, tzinfo=UTC))


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz"])
def test_blobs_are_read_from_tables(write, read, folder: Path, form: str) -> None:
    rows = [blob("1", "request", REQUEST), blob("1", "response", ANSWER)]
    folder.mkdir()
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "batch.parquet")
    else:
        with pa.output_stream(str(folder / f"batch.{form}"), compression="detect") as file:
            pyarrow.csv.write_csv(pa.Table.from_pylist(rows), file)
    (record,), stats = read(IRIS)
    assert record.outputs["label"]["data"] == ["2"]
    assert (stats.format, stats.unpaired) == ("kserve", 0)


def test_events_are_joined_in_any_order_and_keep_the_requests_time(write, read) -> None:
    write([event("2", "response", ANSWER, 9), event("1", "request", REQUEST, 1)])
    write([event("1", "response", ANSWER, 3), event("2", "request", REQUEST, 8)], "part-1.jsonl")
    records, stats = read(IRIS)
    assert [record.time.second for record in records] == [1, 8]
    assert records[0].time.microsecond == 500_000
    assert (stats.records, stats.unpaired, stats.duplicates) == (2, 0, 0)


def test_events_in_a_json_array_over_many_lines_are_read(folder: Path, read) -> None:
    folder.mkdir()
    both = [event("1", "request", REQUEST), event("1", "response", ANSWER)]
    (folder / "events.json").write_text(json.dumps(both, indent=2))
    records, stats = read(IRIS)
    assert (len(records), stats.unreadable, stats.torn) == (1, 0, 0)


def test_binary_events_as_a_sink_keeps_them_are_headers_beside_a_body(write, read) -> None:
    def kept(kind: str, content: Any) -> dict[str, Any]:
        headers = {"Ce-Id": "7", "Ce-Type": KIND + kind, "Ce-Time": "2026-03-08T07:00:00Z"}
        return {"headers": headers | {"Content-Type": "application/json"}, "body_base64": b64(content)}

    write([kept("request", REQUEST), kept("response", ANSWER)])
    (record,), _ = read(IRIS)
    assert (record.time.hour, record.outputs["label"]["data"]) == (7, ["2"])


def test_halves_without_the_other_are_kept_and_counted(write, read) -> None:
    write([event("1", "request", REQUEST), event("2", "response", ANSWER), event("3", "request", REQUEST)])
    records, stats = read(IRIS)
    assert (len(records), stats.unpaired) == (3, 3)
    assert sorted((len(record.inputs), len(record.outputs)) for record in records) == [(0, 1), (1, 0), (1, 0)]


def test_events_that_were_delivered_again_are_duplicates_and_never_unpaired(write, read) -> None:
    request, answer = event("1", "request", REQUEST), event("1", "response", ANSWER)
    write([request, request, answer, request, answer, request])
    records, stats = read(IRIS)
    assert (len(records), stats.unpaired) == (1, 0)
    assert stats.duplicates == 3  # one while it waited, the pair, and the last


def test_an_answer_other_than_200_is_a_failed_request(write, read) -> None:
    write([event("1", "request", REQUEST), event("1", "response", {"error": "no"}, statuscode="503")])
    (record,), _ = read(IRIS)
    assert (record.status, record.inputs) == (503, {})


def test_tensors_of_the_open_inference_protocol_keep_their_types(write, read) -> None:
    sent = {"id": "a", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[6.1, 2.8]]}]}
    got = {
        "outputs": [{"name": "probabilities", "shape": [1, 3], "datatype": "FP32", "data": [0.1, 0.2, 0.7]}]
    }
    write([blob("1", "request", sent), blob("1", "response", got)])
    (record,), _ = read(IRIS)
    assert record.endpoint == "infer"
    assert record.inputs["x"] == {"datatype": "FP32", "shape": [1, 2], "data": [6.1, 2.8]}


def test_tensors_whose_bytes_follow_their_head_are_read(write, read) -> None:
    matrix = np.array([[6.1, 2.8]], dtype="<f4")
    head = {
        "inputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
        ]
    }
    body = json.dumps(head).encode() + matrix.tobytes()
    write([blob("1", "request", body, contentType="application/octet-stream")])
    cut = blob("2", "request", body[:-1], contentType="application/octet-stream")
    write([cut], "part-1.jsonl")
    (record,), stats = read(IRIS)
    assert record.inputs["x"]["data"] == matrix.reshape(-1).tolist()
    assert stats.unreadable == 1


def test_probabilities_are_a_label_and_a_confidence_as_well(write, read) -> None:
    write([blob("1", "request", REQUEST), blob("1", "response", {"predictions": [[0.1, 0.7, 0.2]]})])
    (record,), _ = read(IRIS)
    assert record.outputs["label"]["data"] == ["1"]
    assert record.outputs["confidence"]["data"] == [0.7]
