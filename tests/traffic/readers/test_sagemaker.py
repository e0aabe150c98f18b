from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyarrow import compress

from mlx_platform.core.errors import UsageError

OUTPUT = {
    "observedContentType": "application/json",
    "mode": "OUTPUT",
    "data": "eyJzY29yZXMiOlswLjE4LDAuOTFdfQ==",
    "encoding": "BASE64",
}
INPUT = {
    "observedContentType": "text/csv",
    "mode": "INPUT",
    "data": "41,2,0.375,\n58,1,,DE",
    "encoding": "CSV",
}


def captured(number: int = 0, time: str = "2026-03-08T06:59:58Z", **sides: Any) -> dict[str, Any]:
    data = {"endpointInput": INPUT, "endpointOutput": OUTPUT} | sides
    return {
        "captureData": {name: side for name, side in data.items() if side is not None},
        "eventMetadata": {"eventId": f"7d0c2f7e-{number}", "inferenceTime": time},
        "eventVersion": "0",
    }


def test_a_captured_call_of_two_csv_rows_becomes_a_record_of_two_rows(write, read) -> None:
    write([captured()], "digits/all/2026/03/08/06/59-58-1.jsonl")
    (record,), stats = read()
    assert record.rows == 2
    assert record.inputs["age"] == {"datatype": "INT64", "shape": [2], "data": [41, 58]}
    assert record.inputs["rate"]["data"] == [0.375, None]
    assert record.inputs["country"]["data"] == [None, "DE"]
    assert record.outputs == {"value": {"datatype": "FP64", "shape": [2], "data": [0.18, 0.91]}}
    assert record.time == datetime(2026, 3, 8, 6, 59, 58, tzinfo=UTC)
    assert (record.model, record.version, record.request_id) == ("scorer", "3", "7d0c2f7e-0")
    assert (stats.format, stats.records, stats.unpaired, stats.share_usable) == ("sagemaker", 1, 0, 1.0)


def test_the_callers_own_id_is_preferred(write, read) -> None:
    document = captured()
    document["eventMetadata"]["inferenceId"] = "order-12"
    write([document])
    (record,), _ = read()
    assert record.request_id == "order-12"


@pytest.mark.parametrize(("left_out", "inputs", "outputs"), [("Output", 4, 0), ("Input", 0, 1)])
def test_a_side_that_was_not_captured_is_counted_and_the_other_kept(
    write, read, left_out: str, inputs: int, outputs: int
) -> None:
    write([captured(**{f"endpoint{left_out}": None})])
    (record,), stats = read()
    assert (len(record.inputs), len(record.outputs), stats.unpaired) == (inputs, outputs, 1)


def test_a_call_that_was_delivered_twice_counts_once(write, read) -> None:
    write([captured(1), captured(2)], "a.jsonl")
    write([captured(1)], "b.jsonl.gz")
    records, stats = read()
    assert (len(records), stats.duplicates, stats.segments) == (2, 1, 2)


def test_json_rows_keep_their_names(write, read) -> None:
    side = INPUT | {"data": '{"age": 41, "country": "DE"}', "encoding": "JSON"}
    write([captured(endpointInput=side, endpointOutput=None)])
    (record,), _ = read()
    assert {name: cells["data"] for name, cells in record.inputs.items()} == {"age": [41], "country": ["DE"]}


def test_lines_that_cannot_be_read_are_counted_one_by_one(write, read) -> None:
    wrong = [
        captured(1, endpointInput=INPUT | {"encoding": "ROT13"}),
        captured(2, endpointInput=INPUT | {"data": "1,2"}),
        captured(3, endpointInput=INPUT | {"data": "!", "encoding": "BASE64"}),
        captured(4, endpointInput=None, endpointOutput=None),
        captured(5, time="yesterday Z"),
        {"captureData": 7, "eventMetadata": []},
        ["no", "object"],
    ]
    write([captured(0), *wrong], tail=b'{"captureData": {"endpointIn')
    records, stats = read()
    assert (len(records), stats.unreadable, stats.torn) == (1, len(wrong), 1)
    assert stats.share_usable == pytest.approx(1 / (2 + len(wrong)))


def test_an_answer_of_other_rows_than_its_request_is_unreadable(write, read) -> None:
    write([captured(endpointInput=INPUT | {"data": "41,2,0.375,DE"})])
    records, stats = read()
    assert (records, stats.unreadable) == ([], 1)


def test_times_without_zone_need_one_to_be_named(write, read) -> None:
    write([captured(time="2026-03-08T06:59:58")])
    with pytest.raises(UsageError, match="no zone") as caught:
        read()
    assert "--assume-tz" in caught.value.hint
    (record,), _ = read(zone=ZoneInfo("America/New_York"))
    assert record.time == datetime(2026, 3, 8, 10, 59, 58, tzinfo=UTC)  # daylight saving began at 7 UTC


def test_a_window_is_half_open(write, read) -> None:
    write([captured(number, f"2026-03-08T0{number}:00:00Z") for number in range(4)])
    start, end = (datetime(2026, 3, 8, hour, tzinfo=UTC) for hour in (1, 3))
    records, stats = read(since=start, until=end)
    assert [record.time.hour for record in records] == [1, 2]
    assert (stats.readable, stats.records) == (4, 2)


def test_files_of_other_hours_are_not_opened(write, read, folder) -> None:
    for hour in range(24):
        write([captured(hour, f"2026-03-08T{hour:02}:30:00Z")], f"e/all/2026/03/08/{hour:02}/30-00.jsonl")
    start, end = (datetime(2026, 3, 8, hour, tzinfo=UTC) for hour in (10, 12))
    records, stats = read(since=start, until=end)
    assert [record.time.hour for record in records] == [10, 11]
    assert stats.segments == 4
    write([captured(99, "2026-03-08T10:59:59Z")], "e/all/2026/03/08/11/late.jsonl")
    write([], "e/all/2026/99/08/11/no-hour.jsonl")
    records, stats = read(since=start, until=end)
    assert (len(records), stats.segments) == (3, 6)


def test_zstandard_is_unpacked_and_a_packed_file_that_was_cut_is_torn(write, read, folder) -> None:
    write([captured(0), captured(1)], "a.jsonl.zst")
    whole = compress(b"".join(b'{"no": %d}\n' % number for number in range(50_000)), "zstd", asbytes=True)
    (folder / "b.jsonl.zst").write_bytes(whole[: len(whole) // 2])
    records, stats = read()
    assert (len(records), stats.torn, stats.quarantined) == (2, 1, 0)


def test_a_cut_gzip_file_gives_what_it_still_holds(write, read, folder) -> None:
    write([captured(number) for number in range(2000)], "a.jsonl.gz")
    path = folder / "a.jsonl.gz"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    records, stats = read()
    assert 500 < len(records) < 2000
    assert (stats.torn, stats.unreadable, stats.quarantined) == (1, 0, 0)
    assert path.read_bytes() == content[: len(content) * 3 // 4]


def test_a_damaged_file_is_quarantined_in_the_count_and_left_as_it_is(write, read, folder) -> None:
    write([captured(number) for number in range(50)], "a.jsonl.gz")
    damaged = folder / "b.jsonl.gz"
    content = bytearray((folder / "a.jsonl.gz").read_bytes())
    content[12:40] = bytes(28)
    damaged.write_bytes(content)
    records, stats = read()
    assert (len(records), stats.quarantined) == (50, 1)
    assert 0.45 < stats.share_usable < 0.55
    assert damaged.read_bytes() == bytes(content)
