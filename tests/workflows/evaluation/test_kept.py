import tempfile

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.workflows.evaluation.kept import Column, Names, distinct


def _column(*parts, **options):
    column = Column(**options)
    for part in parts:
        column.add(part)
    return column.finish()


@pytest.mark.parametrize("rows", [None, 3, 10_000])
def test_parts_are_put_together_whatever_was_expected(rows):
    parts = [np.arange(start, start + 1000) for start in range(0, 9000, 1000)]

    np.testing.assert_array_equal(_column(*parts, rows=rows), np.arange(9000))


def test_many_numbers_move_to_a_file_that_nobody_can_open():
    parts = [np.full((1000, 3), number, dtype=np.float32) for number in range(10)]

    whole = _column(*parts, in_memory=20_000)

    assert isinstance(whole, np.memmap)
    assert (whole.shape, whole.dtype) == ((10_000, 3), np.float32)
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert not whole.flags.writeable


@pytest.mark.parametrize("in_memory", [1 << 20, 1])
def test_a_part_of_a_wider_type_makes_the_column_wider(in_memory):
    whole = _column(np.array([1, 2]), np.array([2.5, 3.5]), np.array([4]), in_memory=in_memory)
    assert (whole.dtype, whole.tolist()) == (np.float64, [1, 2, 2.5, 3.5, 4])

    whole = _column(np.array([1, 2]), text_column([None, "x"]), np.array([3]), in_memory=in_memory)
    assert whole.tolist() == [1, 2, None, "x", 3]

    whole = _column(np.array([[1, 2]]), np.array([[1, 2, 3]]), in_memory=in_memory)
    assert whole.tolist() == [[1, 2], [1, 2, 3]]


def test_equal_texts_and_lists_are_one_object_but_equal_numbers_of_other_types_are_not():
    texts = _column(text_column(["a" + "b" * 3, None]), text_column(["a" + "bbb", b"x"]))
    assert texts[0] is texts[2]

    lists = _column(text_column([["a"], []]), text_column([["a"], [["nested"]]]))
    assert lists.tolist() == [["a"], [], ["a"], [["nested"]]]

    mixed = _column(text_column([1, 1.0]), text_column([True, 1]))
    assert list(map(type, mixed.tolist())) == [int, float, bool, int]


def test_a_full_disk_is_told_with_a_way_out(monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_options: open("/dev/full", "wb", buffering=0))  # noqa: SIM115, PTH123

    with pytest.raises(UsageError, match="No space left") as caught:
        _column(np.zeros(100), in_memory=10)
    assert "TMPDIR" in caught.value.hint


def _names(*parts):
    names = Names()
    for part in parts:
        names.add(part)
    return names.finish()


def test_names_are_numbers_or_texts():
    numbers = _names(np.array([5, 6], dtype=np.int32), np.array([5]))
    assert (list(numbers), numbers.repeated, numbers.missing) == ([5, 6, 5], 1, 0)
    assert (numbers[-1], numbers[1:]) == (5, [6, 5])

    texts = _names(text_column(["a", None]), text_column(["ü" * 3, "a", None, "", b"raw"]))
    assert list(texts) == ["a", "", "üüü", "a", "", "", "raw"]
    assert texts.missing == 3
    assert texts.first_repeat == (3, 0)


def test_names_that_turn_from_numbers_into_texts_stay_what_they_are():
    names = _names(np.array([1, 2]), text_column(["2", "x"]), np.array([1]))

    assert list(names) == ["1", "2", "2", "x", "1"]
    assert names.repeated == 2


def test_rows_without_a_name_do_not_repeat_each_other():
    names = _names(text_column(["a", None, None, None, "a"]))

    assert (names.missing, names.repeated) == (3, 1)


def test_numbers_with_gaps_are_names_too():
    names = _names(np.array([1.0, np.nan, np.nan]))

    assert (names[0], names.missing) == ("1.0", 2)
    assert names.repeated == 0


def test_different_values_are_counted():
    assert [distinct(np.array(values)) for values in ([], [1], [2, 1, 2], [3, 3])] == [0, 1, 2, 1]
