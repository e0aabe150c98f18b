"""Records read strictly, and samples that agree everywhere."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.record import Record, is_sampled, payload_bytes


def document(record: Any, **fields: Any) -> dict[str, Any]:
    return orjson.loads(orjson.dumps(record(7))) | fields


def test_a_record_reads_back_from_its_json_form(record: Any) -> None:
    assert Record.from_document(document(record)) == record(7)


def test_what_a_later_version_adds_is_left_out_and_what_it_lacks_has_a_default(record: Any) -> None:
    read = document(record, invented=1)
    del read["arm"]

    assert Record.from_document(read).arm == "production"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seq", "7"),
        ("seq", True),
        ("seq", -1),
        ("seq", 2**63),
        ("status", 2**31),
        ("rows", 1.5),
        ("request_id", None),
        ("time", "2026-03-08T12:00:00"),
        ("time", "soon"),
        ("time", 12),
        ("time", "0001-01-01T00:00:00Z"),
        ("inputs", []),
        ("timings_ms", {"total": "fast"}),
        ("sampling", "all"),
        ("truncated", 0),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(record: Any, field: str, value: object) -> None:
    with pytest.raises(UsageError):
        Record.from_document(document(record, **{field: value}))


@pytest.mark.parametrize("field", ["request_id", "time", "seq", "server_id", "boot_id", "model", "digest"])
def test_a_record_without_identity_is_refused(record: Any, field: str) -> None:
    read = document(record)
    del read[field]

    with pytest.raises(UsageError):
        Record.from_document(read)


def test_times_are_kept_in_utc(record: Any) -> None:
    read = Record.from_document(document(record, time="2026-03-08T13:00:00.5+01:00"))

    assert read.time == datetime(2026, 3, 8, 12, 0, 0, 500_000, tzinfo=UTC)
    assert read.time.tzinfo is UTC


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_sample_holds_the_smaller_one(request_id: str, one: float, other: float) -> None:
    small, large = sorted((one, other))

    assert is_sampled(request_id, large) or not is_sampled(request_id, small)
    assert is_sampled(request_id, 1.0)
    assert not is_sampled(request_id, 0.0)


def test_a_sample_holds_its_share_of_requests() -> None:
    chosen = sum(is_sampled(f"request-{index}", 0.25) for index in range(20_000))

    assert 0.24 < chosen / 20_000 < 0.26
    assert is_sampled("request-0", 0.5) is True  # the same in every process and release
    assert is_sampled("request-1", 0.5) is False


def test_the_size_of_a_record_grows_with_what_it_holds(record: Any) -> None:
    small = payload_bytes(record(inputs={}))

    assert payload_bytes(record(inputs={"x": {"datatype": "FP64", "data": [0.0] * 1000}})) > small + 8000
    assert payload_bytes(record(inputs={"x": {"datatype": "BYTES", "data": ["y" * 5000]}})) > small + 5000
    assert payload_bytes(record(inputs={"x": {"datatype": "FP16", "base64": "y" * 5000}})) > small + 5000
    assert payload_bytes(record().without_payload()) <= small
