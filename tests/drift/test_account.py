"""What has been counted is known again, whatever it is called and wherever it lies."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.span import ALWAYS, Span
from mlx_platform.drift.account import Account, count_file, runs_of

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
NUMBERS = st.sets(st.integers(0, 60))


def listed(runs):
    return {number for start, end in runs.tolist() for number in range(start, end)}


@given(NUMBERS, NUMBERS)
def test_runs_of_numbers_are_sets_of_them(one, other):
    accounts = [Account({"s/b": runs_of(numbers)}) for numbers in (one, other)]
    both = accounts[0] + accounts[1]
    assert listed(both.runs["s/b"]) == one | other
    wanted = "none" if not one & other else "all" if other <= one else "some"
    assert accounts[0].holds(accounts[1]) == wanted
    again = Account.from_document(both.document())
    assert listed(again.runs["s/b"]) == one | other


def test_another_server_or_another_start_of_it_is_something_else():
    account = Account({"s/b": runs_of(range(10))})
    assert account.holds(Account({"s/c": runs_of(range(10))})) == "none"


def test_many_records_in_a_row_take_no_room():
    assert Account({"s/b": runs_of(range(100_000))}).document()["runs"] == {"s/b": [0, 100_000]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "part.jsonl"
    path.write_bytes(b"".join(b'{"x": %d}\n' % number for number in range(500)))
    return path


def test_a_copy_of_a_file_under_another_name_is_the_same(file):
    copy = file.with_name("copy.jsonl")
    copy.write_bytes(file.read_bytes())
    account = Account(files=(count_file(file, ALWAYS),))
    assert account.holds(Account(files=(count_file(copy, ALWAYS),))) == "all"


def test_a_file_that_has_grown_holds_what_was_counted(file):
    before = Account(files=(count_file(file, ALWAYS),))
    with file.open("ab") as more:
        more.write(b'{"x": 501}\n')
    after = Account(files=(count_file(file, ALWAYS),))
    assert before.holds(after) == after.holds(before) == "some"
    assert "part.jsonl" in before.shared(after)


def test_another_file_of_the_same_name_is_something_else(file):
    before = Account(files=(count_file(file, ALWAYS),))
    file.write_bytes(file.read_bytes().replace(b"1", b"2"))
    assert before.holds(Account(files=(count_file(file, ALWAYS),))) == "none"


@pytest.mark.parametrize(
    ("hours", "overlap"), [((1, 2), "none"), ((0, 1), "all"), ((0, 2), "some"), ((None, None), "some")]
)
def test_different_spans_of_one_file_are_told_apart(file, hours, overlap):
    account = Account(files=(count_file(file, Span(NOON, NOON + timedelta(hours=1))),))
    ends = [None if hour is None else NOON + timedelta(hours=hour) for hour in hours]
    other = Account(files=(count_file(file, Span(*ends)),))
    assert account.holds(other) == overlap
    assert Account.from_document(account.document()).holds(other) == overlap
