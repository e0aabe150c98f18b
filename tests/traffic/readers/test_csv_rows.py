"""Cells of CSV, as the standard library reads them, and larger ones."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.traffic.readers import csv_rows
from mlx_platform.traffic.readers.csv_rows import TooLongError, rows_of

CELLS = st.text(alphabet='ab,"\n ;é', max_size=8)


def lines_of(text):
    return [f"{line}\n" for line in text.removesuffix("\n").split("\n")] if text else []


@given(st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=5))
def test_what_was_written_is_read(rows):
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    assert list(rows_of(lines_of(file.getvalue()))) == rows


@given(st.text(alphabet='ab," ', max_size=20))
def test_careless_quotes_are_read_as_by_the_standard_library(text):
    lines = [f"{text}\n", '",x"\n']  # closes what is open
    assert list(rows_of(lines))[:1] == list(csv.reader(lines))[:1]


def test_a_cell_may_be_a_payload_of_megabytes_and_the_limit_of_the_process_stays():
    before = csv.field_size_limit()
    cell = 'x"y\n' * 500_000
    quoted = cell.replace('"', '""')
    assert list(rows_of(lines_of(f'1,"{quoted}",2\n3,4,5\n'))) == [["1", cell, "2"], ["3", "4", "5"]]
    assert csv.field_size_limit() == before


def test_a_quote_that_is_never_closed_fills_no_memory(monkeypatch):
    monkeypatch.setattr(csv_rows, "CELL_CAP", 1000)
    with pytest.raises(TooLongError):
        list(rows_of(['a,"b\n', *["more\n"] * 1000]))


def test_the_end_of_a_cut_file_is_a_shorter_row():
    assert list(map(len, rows_of(["1,2,3\n", '4,"5\n']))) == [3, 2]


def test_lines_may_end_as_on_windows():
    assert list(rows_of(["a,b\r\n", '"c","d"\r\n', "\r\n"])) == [["a", "b"], ["c", "d"], []]
