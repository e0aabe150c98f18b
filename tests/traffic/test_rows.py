"""Records become columns again, whatever a few of them hold."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.tensors import encode_array, text_column
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.rows import RowBatch, row_batches


def batches(records: list[Any], **options: Any) -> tuple[list[RowBatch], LogStats]:
    stats = LogStats()
    return list(row_batches(records, stats, **options)), stats


def encoded(**columns: np.ndarray) -> dict[str, Any]:
    return {name: encode_array(column) for name, column in columns.items()}


def test_requests_of_one_form_become_one_batch(record: Any) -> None:
    records = [
        record(seq, inputs=encoded(x=np.full(rows, seq / 10), s=text_column([f"t{seq}"] * rows)), outputs={})
        for seq, rows in ((1, 1), (2, 3), (3, 2))
    ]

    found, stats = batches(records)

    assert len(found) == 1
    assert found[0].rows == 6
    assert found[0].inputs["x"].tolist() == [0.1, 0.2, 0.2, 0.2, 0.3, 0.3]
    assert found[0].inputs["s"].tolist() == ["t1", "t2", "t2", "t2", "t3", "t3"]
    assert found[0].records == 3
    assert stats.unreadable == 0


def test_arrays_keep_their_type_shape_and_bits(record: Any) -> None:
    columns = {
        "float": np.array([[0.1, np.nan], [np.inf, -0.0]], dtype=np.float32),
        "half": np.array([1.5, 2.5], dtype=np.float16),
        "whole": np.array([2**62, -1]),
        "flag": np.array([True, False]),
        "bytes": text_column([b"\x00\xff", b""]),
        "none": text_column([None, "x"]),
    }

    found, _ = batches([record(seq, inputs=encoded(**columns), outputs={}) for seq in (1, 2)])

    for name, column in columns.items():
        twice = np.concatenate([column, column])
        assert found[0].inputs[name].dtype == column.dtype
        np.testing.assert_array_equal(found[0].inputs[name], twice)


def test_other_forms_make_other_batches(record: Any) -> None:
    forms = [
        {"inputs": encoded(x=np.zeros(1)), "outputs": {}},
        {"inputs": encoded(x=np.zeros((1, 2))), "outputs": {}},
        {"inputs": encoded(x=np.zeros(1, np.float32)), "outputs": {}},
        {"inputs": encoded(y=np.zeros(1)), "outputs": {}},
        {"inputs": encoded(x=np.zeros(1)), "outputs": {}, "endpoint": "infer"},
    ]

    found, _ = batches([record(seq, **form) for seq, form in enumerate(forms * 2)])

    assert [each.records for each in found] == [2] * 5


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": None},
        {"x": {}},
        {"x": {"datatype": "FP64", "shape": [2], "data": [1.0]}},
        {"x": {"datatype": "FP65", "shape": [1], "data": [1.0]}},
        {"x": {"datatype": "FP64", "shape": [-1], "data": [1.0]}},
        {"x": {"datatype": "FP64", "shape": [], "data": [1.0]}},
        {"x": {"datatype": "FP64", "shape": [1], "data": ["one"]}},
        {"x": {"datatype": "FP64", "shape": [1], "data": [[1.0]]}},
        {"x": {"datatype": "FP64", "shape": [1], "data": [None]}},
        {"x": {"datatype": "FP64", "shape": [1], "data": 1.0}},
        {"x": {"datatype": "FP64", "shape": [1], "base64": "AA=="}},
        {"x": encode_array(np.zeros(1)), "y": encode_array(np.zeros(2))},
    ],
)
def test_a_record_that_cannot_be_read_is_counted_and_spoils_no_other(
    record: Any, inputs: dict[str, Any]
) -> None:
    good = encoded(x=np.array([0.5]))

    found, stats = batches(
        [
            record(1, inputs=good, outputs={}),
            record(2, inputs=inputs, outputs={}),
            record(3, inputs=good, outputs={}),
        ]
    )

    assert stats.unreadable == 1
    assert found[0].inputs["x"].tolist() == [0.5, 0.5]


ODD = st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=3) | st.just([1])
ARRAYS = st.dictionaries(
    st.sampled_from("xy"),
    st.fixed_dictionaries(
        {},
        optional={
            "datatype": st.sampled_from(["FP32", "INT64", "UINT8", "BYTES", "BOOL", "?"]) | ODD,
            "shape": st.lists(st.integers(0, 2) | ODD, max_size=3) | ODD,
            "data": st.lists(ODD, max_size=4) | ODD,
            "base64": st.sampled_from(["", "AAAAAA==", "AAAAAAAAAAA="]) | ODD,
            "base64_each": st.lists(st.just("AA=="), max_size=3) | ODD,
        },
    )
    | ODD,
    max_size=2,
)


@given(st.lists(st.tuples(ARRAYS, ARRAYS), max_size=4))
def test_whatever_a_log_holds_every_record_is_read_or_counted_or_empty(payloads: list[Any]) -> None:
    moment = datetime(2026, 3, 8, tzinfo=UTC)
    identity = dict.fromkeys(("request_id", "server_id", "boot_id", "model", "version", "digest"), "")
    records = [
        Record(time=moment, seq=seq, inputs=inputs, outputs=outputs, **identity)
        for seq, (inputs, outputs) in enumerate(payloads)
    ]

    found, stats = batches(records)

    assert sum(each.records for each in found) + stats.unreadable <= len(records)
    for each in found:
        assert {len(column) for column in (*each.inputs.values(), *each.outputs.values())} == {each.rows}


def test_memory_is_bounded_by_the_rows_of_a_batch(record: Any) -> None:
    records = [record(seq, inputs=encoded(x=np.zeros(10)), outputs={}) for seq in range(10)]

    found, _ = batches(records, batch_rows=25)

    assert [each.rows for each in found] == [30, 30, 30, 10]


def test_a_record_without_arrays_holds_no_rows(record: Any) -> None:
    found, stats = batches([record(1).without_payload()])

    assert found == []
    assert stats.unreadable == 0


def test_a_number_that_its_type_cannot_hold_costs_no_other_row(record: Any) -> None:
    good = encoded(x=np.array([7], dtype=np.uint8))
    bad = {"x": {"datatype": "UINT8", "shape": [1], "data": [10**30]}}

    found, _ = batches([record(1, inputs=good, outputs={}), record(2, inputs=bad, outputs={})])

    assert found[0].inputs["x"].tolist() == [7, 10**30]
