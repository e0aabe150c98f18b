import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.readers.signature import Signature

EMBED = Signature(
    inputs=(TensorSpec("ids", "INT32", (None, 3)),),
    outputs=(TensorSpec("vec", "FP32", (None, 2)),),
    task="tensors",
    digest="d" * 64,
)


def traced(number: int, ids: str = "101,2054,102") -> list[dict[str, Any]]:
    tensor = {"name": "ids", "data": ids, "shape": "1,3", "dtype": "INT32"}
    answer = {"name": "vec", "data": "0.031,-0.77", "shape": "1,2", "dtype": "FP32"}
    return [
        {
            "id": number,
            "model_name": "embed",
            "model_version": 4,
            "request_id": f"r-{number}",
            "parent_id": 8,
        },
        {"id": number, "timestamps": [{"name": "REQUEST_START", "ns": 1_000_000}]},
        {"id": number, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor},
        {"id": number, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": answer},
        {"id": number, "timestamps": [{"name": "REQUEST_END", "ns": 4_500_000}]},
    ]


@pytest.fixture
def trace(folder: Path):
    def trace(objects: list[dict[str, Any]], name: str = "trace.json", cut: int | None = None) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(objects)[:cut])
        return folder / name

    return trace


def test_what_is_told_of_one_request_becomes_one_record(trace, read) -> None:
    trace(traced(9))
    (record,), stats = read(EMBED)
    assert record.inputs == {"ids": {"datatype": "INT32", "shape": [1, 3], "data": [101, 2054, 102]}}
    assert record.outputs == {"vec": {"datatype": "FP32", "shape": [1, 2], "data": [0.031, -0.77]}}
    assert (record.endpoint, record.request_id, record.server_id) == ("infer", "r-9", "embed/4")
    assert record.timings_ms == {"total": 3.5}
    assert (stats.format, stats.records, stats.unpaired) == ("triton", 1, 0)


def test_requests_may_be_told_of_in_turns(trace, read) -> None:
    one, other = traced(1), traced(2, ids="1,2,3")
    trace([part for pair in zip(one, other, strict=True) for part in pair])
    records, _ = read(EMBED)
    assert [record.inputs["ids"]["data"] for record in records] == [[101, 2054, 102], [1, 2, 3]]


def test_the_same_numbers_in_two_files_are_two_requests(trace, read) -> None:
    trace(traced(1), "a.json")
    trace(traced(1), "b.json")
    records, stats = read(EMBED)
    assert (len(records), stats.duplicates) == (2, 0)


def test_a_trace_that_is_being_written_gives_what_is_there(trace, read) -> None:
    trace(traced(1) + traced(2), cut=-40)
    records, stats = read(EMBED)
    assert (len(records), stats.torn) == (2, 1)


def test_a_trace_has_no_time_of_day(trace, read) -> None:
    trace(traced(1))
    with pytest.raises(UsageError, match="no time of day"):
        read(EMBED, until=datetime(2026, 3, 8, tzinfo=UTC))


def test_a_tensor_whose_numbers_do_not_fill_its_shape_is_unreadable(trace, read) -> None:
    trace(traced(1, ids="101,2054") + traced(2))
    records, stats = read(EMBED)
    assert (len(records), stats.unreadable) == (1, 1)
