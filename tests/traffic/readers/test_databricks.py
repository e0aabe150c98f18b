import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.readers.signature import Signature

CHURN = Signature(
    columns=("age", "ctr"),
    outputs=(TensorSpec("p", "FP32", (None, 1)),),
    task="regression",
    model="churn",
    version="7",
    digest="d" * 64,
)
SPLIT = json.dumps({"dataframe_split": {"columns": ["age", "ctr"], "data": [[41, 0.375]]}})
ANSWER = '{"predictions":[0.18]}'
MOMENT = datetime(2026, 3, 8, 6, 59, 58, 123_000, tzinfo=UTC)


def legacy(key: str = "0d1e", **more: Any) -> dict[str, Any]:
    return {
        "databricks_request_id": key,
        "client_request_id": "r-771",
        "date": MOMENT.date(),
        "timestamp_ms": int(MOMENT.timestamp() * 1000),
        "status_code": 200,
        "sampling_fraction": 0.25,
        "execution_time_ms": 14,
        "request": SPLIT,
        "response": ANSWER,
        "request_metadata": {"model_name": "churn", "model_version": "7", "endpoint": "churn"},
    } | more


def gateway(key: str = "0d1e", **more: Any) -> dict[str, Any]:
    return {
        "request_date": MOMENT.date(),
        "databricks_request_id": key,
        "client_request_id": "r-771",
        "request_time": MOMENT,
        "status_code": 200,
        "sampling_fraction": 0.25,
        "execution_duration_ms": 14,
        "request": SPLIT,
        "response": ANSWER,
        "served_entity_id": "churn-7",
        "logging_error_codes": [],
        "requester": "somebody",
    } | more


def unity(key: str = "0d1e", **more: Any) -> dict[str, Any]:
    row = gateway(key)
    for old, new in (
        ("databricks_request_id", "invocation_id"),
        ("request_time", "event_time"),
        ("execution_duration_ms", "latency_ms"),
    ):
        row[new] = row.pop(old)
    return row | more


@pytest.fixture
def table(folder: Path):
    def table(rows: list[dict[str, Any]], name: str = "part-0.snappy.parquet") -> Path:
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / name, row_group_size=2)
        return folder / name

    return table


@pytest.mark.parametrize(
    ("row", "origin"), [(legacy(), "churn/7"), (gateway(), "churn-7"), (unity(), "churn-7")]
)
def test_each_generation_of_the_table_gives_the_same_record(table, read, row, origin: str) -> None:
    table([row])
    (record,), stats = read(CHURN)
    assert record.inputs["age"] == {"datatype": "INT64", "shape": [1], "data": [41]}
    assert record.inputs["ctr"]["data"] == [0.375]
    assert record.outputs["value"]["data"] == [0.18]
    assert (record.time, record.sampling, record.timings_ms) == (MOMENT, 0.25, {"total": 14.0})
    assert (record.request_id, record.server_id, record.version) == ("r-771", origin, "7")
    assert (stats.format, stats.records) == ("databricks", 1)


def test_maps_of_a_table_are_read_like_structs(folder: Path, read) -> None:
    folder.mkdir()
    row = legacy()
    meta = pa.array([list(row.pop("request_metadata").items())], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.Table.from_pylist([row]).append_column("request_metadata", meta), folder / "a.parquet")
    (record,), _ = read(CHURN)
    assert record.server_id == "churn/7"


def test_times_in_nanoseconds_are_read(folder: Path, read) -> None:
    folder.mkdir()
    rows = pa.Table.from_pylist([gateway()])
    at = rows.schema.get_field_index("request_time")
    rows = rows.set_column(at, "request_time", rows.column(at).cast(pa.timestamp("ns", "UTC")))
    pq.write_table(rows, folder / "a.parquet")
    (record,), _ = read(CHURN)
    assert record.time == MOMENT


def test_an_export_in_lines_of_json_is_read(write, read) -> None:
    write([gateway(request_date="2026-03-08", request_time="2026-03-08T06:59:58.123Z")])
    (record,), _ = read(CHURN)
    assert record.time == MOMENT


def test_a_batch_is_one_record_of_many_rows(table, read) -> None:
    rows = json.dumps({"dataframe_records": [{"age": 41, "ctr": 0.5}, {"age": None, "ctr": 1}]})
    table([gateway(request=rows, response='{"predictions":[1, 2]}')])
    (record,), _ = read(CHURN)
    assert (record.rows, record.inputs["age"]["data"]) == (2, [41, None])


@pytest.mark.parametrize(
    "lost",
    [
        {"request": None, "logging_error_codes": ["MAX_REQUEST_SIZE_EXCEEDED"]},
        {"response": None, "logging_error_codes": ["MAX_RESPONSE_SIZE_EXCEEDED"]},
        {"request": None},
    ],
)
def test_a_payload_that_was_too_large_is_a_truncated_record(table, read, lost: dict[str, Any]) -> None:
    table([gateway(), gateway("0d1f", **lost)])
    records, stats = read(CHURN)
    assert [record.truncated for record in records] == [False, True]
    assert stats.unreadable == 0


def test_failed_requests_keep_their_status(table, read) -> None:
    table([gateway(status_code=500, response=None)])
    (record,), _ = read(CHURN)
    assert (record.status, record.truncated) == (500, False)


def test_rows_that_a_compacted_table_holds_twice_count_once(table, read, folder: Path) -> None:
    table([gateway("1"), gateway("2")], "old.parquet")
    table([gateway("1"), gateway("2"), gateway("3")], "new.parquet")
    log = folder / "_delta_log"
    log.mkdir()
    (log / "0.json").write_text('{"commitInfo": {}}')
    records, stats = read(CHURN)
    assert (len(records), stats.duplicates, stats.segments) == (3, 2, 2)


def test_a_damaged_table_is_quarantined_in_the_count(table, read) -> None:
    table([gateway(str(number)) for number in range(40)], "a.parquet")
    path = table([gateway(str(number)) for number in range(100, 140)], "b.parquet")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    records, stats = read(CHURN)
    assert (len(records), stats.quarantined) == (40, 1)
    assert 0.6 < stats.share_usable < 0.75
    assert len(path.read_bytes()) == len(content) // 2


@pytest.mark.parametrize("wrong", [{"sampling_fraction": 0.0}, {"status_code": 20}, {"request": "{"}])
def test_rows_that_make_no_sense_are_unreadable(table, read, wrong: dict[str, Any]) -> None:
    table([gateway(**wrong)])
    records, stats = read(CHURN)
    assert (records, stats.unreadable) == ([], 1)
