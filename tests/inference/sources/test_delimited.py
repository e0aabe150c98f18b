import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.dataset import read_dataset
from mlx_platform.inference.sources import delimited
from mlx_platform.inference.sources.opening import open_dataset

TIMES = ["2020-01-02", "2020-01-02 03:04:05", "2020-01-02T03:04:05Z", "2020-01-02 03:04:05.123456789"]
NUMBERS = ["1", "-7", " 3", "1.5", "1e3", "0", "9999999999999999999"]
CELLS = st.sampled_from(["", "NaN", "null", "N/A", "true", "False", "x", *NUMBERS, *TIMES])


@pytest.fixture
def write(tmp_path):
    def written(content):
        path = tmp_path / "d.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(cells=st.lists(CELLS, min_size=1, max_size=6))
def test_types_are_those_that_arrow_infers_from_the_whole_file(write, cells):
    content = "k,a\n" + "".join(f"k,{cell}\n" for cell in cells)
    wanted = csv.read_csv(io.BytesIO(content.encode()))["a"]

    found = read_dataset(write(content)).column("a")

    if wanted.type in {"null", "string"} or (wanted.null_count and wanted.type == "bool"):
        assert found.tolist() == wanted.to_pylist()
    else:
        np.testing.assert_array_equal(found, wanted.to_numpy())


def test_a_type_that_the_last_row_changes_is_that_of_all_rows(write):
    content = "a,b,c\n" + "1,true,\n" * 400_000 + "1.5,maybe,x\n"

    batches = list(open_dataset(write(content)).batches(100_000))

    assert {batch["a"].dtype for batch in batches} == {np.dtype(float)}
    assert (batches[0]["b"][0], batches[-1]["b"][-1]) == ("true", "maybe")
    assert (batches[0]["c"][0], batches[-1]["c"][-1]) == ("", "x")
    assert sum(len(batch["a"]) for batch in batches) == 400_001


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n\n3\n", "line 4: Expected 2 columns, got 1"),
        (b'a,b\n1,"x\ny"\n3\n', "line 4: Expected 2 columns, got 1"),
        (b"a,b\n1,caf\xe9\n", "line 2: the byte 0xe9"),
        ("a,b\n1,é\n".encode() + b"\xff,1\n", "line 3: the byte 0xff"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"a;b\n1;2\n", "not separated by commas"),
        (b'a,b\n1,2\n3,"4\n5,6\n7,8\n', "never closed takes in everything behind it, from line 3 on"),
        (b"a,b,a\n1,2,3\n", "two columns 'a'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write, content, said):
    with pytest.raises(UsageError) as caught:
        read_dataset(write(content))
    assert "d.csv" in caught.value.message
    assert said in caught.value.message


def test_a_broken_line_beyond_the_first_block_is_named_as_well(write):
    with pytest.raises(UsageError, match="line 700,002: Expected 2 columns, got 3"):
        open_dataset(write("a,b\n" + "1,abcdefgh\n" * 700_000 + "1,2,3\n"))


def test_a_mixed_encoding_beyond_the_first_block_is_named_as_well(write):
    with pytest.raises(UsageError, match="line 700,002: the byte 0xfc"):
        open_dataset(write(b"a,b\n" + b"1,abcdefgh\n" * 700_000 + b"1,\xfc\n"))


def test_a_character_that_lies_across_two_blocks_is_no_error(write):
    row = "x" * (delimited._BLOCK - 3) + "é"

    assert read_dataset(write(f"a\n{row}\n1\n")).column("a").tolist() == [row, "1"]


def test_rows_larger_than_a_block_are_read_and_endless_ones_refused(write, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK", 1 << 10)
    monkeypatch.setattr(delimited, "_LARGE_BLOCK", 1 << 14)

    assert read_dataset(write("a,b\n1," + "x" * 5000 + "\n")).column("b")[0] == "x" * 5000
    with pytest.raises(UsageError, match="a row is longer than"):
        read_dataset(write("a,b\n1," + "x" * 50_000 + "\n"))


def test_rows_are_located_by_the_line_in_which_they_end(write):
    source = open_dataset(write('a,b\n1,2\n\n3,"x\ny"\n5,6\n'))

    assert [source.locate(row).rpartition("line ")[2] for row in range(3)] == ["2", "5", "6"]


def test_a_byte_order_mark_is_no_part_of_the_first_name(write):
    assert list(read_dataset(write(b"\xef\xbb\xbfa,b\n1,2\n")).columns) == ["a", "b"]


def test_bytes_read_are_told_as_they_are(write):
    path = write("a\n" + "1\n" * 3_000_000)
    told = []

    open_dataset(path, told.append)

    assert sum(told) == path.stat().st_size
    assert len(told) > 1
