"""Columns of every kind, and every way of being missing."""

from datetime import date
from typing import Any

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.drift import values
from mlx_platform.drift.values import Missing


@pytest.mark.parametrize(
    ("column", "ordered", "missing"),
    [
        (np.array([3.0, np.nan, 1.0]), [1.0, 3.0], Missing(nan=1)),
        (np.array([3, 1], dtype=np.uint8), [1, 3], Missing()),
        (np.array([True, False]), [0, 1], Missing()),
        (np.array([2**60 + 1, 2**60], dtype=np.int64), [2**60, 2**60 + 1], Missing()),
        (np.array([2**64 - 1, 1], dtype=np.uint64), [1.0, float(2**64)], Missing()),
        (
            text_column([None, "2.5", 1, float("nan"), "x", [1]]),
            [1.0, 2.5],
            Missing(null=1, nan=1, invalid=2),
        ),
        (np.array(["1970-01-01", "NaT"], dtype="datetime64[D]"), [0], Missing(null=1)),
    ],
)
def test_numbers_come_out_sorted_with_what_was_missing(
    column: np.ndarray, ordered: list[float], missing: Missing
) -> None:
    found = values.numbers(column)

    assert found.ordered.tolist() == ordered
    assert found.missing == missing


def test_infinities_are_values_but_not_finite_ones() -> None:
    found = values.numbers(np.array([np.inf, 1.0, -np.inf, np.inf, np.nan]))

    assert (found.neginf, found.posinf) == (1, 2)
    assert found.finite.tolist() == [1.0]


@pytest.mark.parametrize(
    ("column", "counts", "missing"),
    [
        (text_column([1, 1.0, "1", "a", None]), {"1": 3, "a": 1}, Missing(null=1)),
        (np.array([1.0, 1.5, np.nan]), {"1": 1, "1.5": 1}, Missing(nan=1)),
        (np.array([True, False, True]), {"true": 2, "false": 1}, Missing()),
        (text_column(["a", float("nan"), [1], {}]), {"a": 1}, Missing(nan=1, invalid=2)),
        (text_column([b"caf\xc3\xa9", "café"]), {"café": 2}, Missing()),
        (text_column([date(2026, 1, 1), ""]), {"": 1}, Missing(invalid=1)),
        (text_column([np.int64(3), np.str_("3")]), {"3": 2}, Missing()),
    ],
)
def test_one_value_is_one_category_whatever_its_type(
    column: np.ndarray, counts: dict[str, int], missing: Missing
) -> None:
    found = values.categories(column)

    assert dict(found.counts) == counts
    assert found.missing == missing


def test_long_texts_stay_apart_under_short_keys() -> None:
    one, other = ("x" * 1000 + ending for ending in "ab")

    keys = {values.category_key(one), values.category_key(other), values.category_key(one)}

    assert len(keys) == 2
    assert all(key and len(key) <= values.KEY_CAP for key in keys)


@pytest.mark.parametrize(
    ("column", "numeric"),
    [
        (np.array([1.0]), True),
        (np.array([True]), False),
        (text_column([1, None, 2.5]), True),
        (text_column([1, "2"]), False),
        (text_column([True, None]), False),
        (text_column([None]), False),
        (np.array(["1"]), False),
    ],
)
def test_a_baseline_of_numbers_is_numeric_and_anything_else_is_not(column: np.ndarray, numeric: bool) -> None:
    assert values.holds_numbers(column) is numeric


@pytest.mark.parametrize("read", [values.numbers, values.categories])
def test_a_feature_has_one_value_in_each_row(read: Any) -> None:
    with pytest.raises(UsageError):
        read(np.zeros((2, 2)))
