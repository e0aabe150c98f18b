"""Frames: a record survives, and damage anywhere is noticed."""

import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic import frame
from mlx_platform.traffic.record import Record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ENCODED = st.dictionaries(TEXT, st.fixed_dictionaries({"data": JSON, "shape": JSON}), max_size=3)
RECORDS = st.builds(
    Record,
    request_id=TEXT,
    time=st.integers(0, 9_000_000_000_000_000).map(lambda micros: EPOCH + timedelta(microseconds=micros)),
    seq=st.integers(0, 2**63 - 1),
    server_id=TEXT,
    boot_id=TEXT,
    model=TEXT,
    version=TEXT,
    digest=TEXT,
    status=st.integers(0, 999),
    rows=st.integers(0, 2**40),
    inputs=ENCODED,
    outputs=ENCODED,
    timings_ms=st.dictionaries(TEXT, st.floats(0, 1e9), max_size=3),
    hashes=st.dictionaries(TEXT, TEXT, max_size=2),
    sampling=st.floats(0, 1),
    error=TEXT,
    truncated=st.booleans(),
)


@given(RECORDS)
def test_a_record_reads_back_from_its_line(entry: Record) -> None:
    line = frame.encode(entry)

    assert frame.decode(line) == entry
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@given(RECORDS, st.data())
def test_any_changed_byte_is_noticed(entry: Record, data: st.DataObject) -> None:
    line = bytearray(frame.encode(entry))
    place = data.draw(st.integers(0, len(line) - 2))
    line[place] ^= data.draw(st.integers(1, 255))

    with pytest.raises(UsageError):
        frame.decode(bytes(line))


@given(RECORDS, st.data())
def test_any_cut_is_noticed(entry: Record, data: st.DataObject) -> None:
    line = frame.encode(entry)

    with pytest.raises(UsageError):
        frame.decode(line[: data.draw(st.integers(0, len(line) - 2))])


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b"NaN", b"{"])
def test_a_sound_checksum_does_not_make_a_record(body: bytes) -> None:
    with pytest.raises(UsageError):
        frame.decode(b"%08x %b\n" % (zlib.crc32(body), body))


def test_text_that_json_cannot_hold_is_an_error_of_its_record(record: Any) -> None:
    with pytest.raises(TypeError):
        frame.encode(record(request_id="\ud800"))
