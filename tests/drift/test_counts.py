"""Counts of shards add up to the same integers however the rows were split."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.drift import tally
from mlx_platform.drift.counts import Counts, count
from mlx_platform.drift.profile import build_profile

CELLS = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, 1.0, 2.0, -1.0]),
)
WORDS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "new", "\x00"]), st.integers(0, 3))
ROWS = st.lists(st.tuples(CELLS, CELLS, WORDS), min_size=1, max_size=80)


def columns(rows: list[tuple[float, float, object]]) -> dict[str, Array]:
    return {
        "numeric": np.array([row[0] for row in rows], dtype=np.float64),
        "discrete": np.array([row[1] for row in rows], dtype=np.float32),
        "word": text_column([row[2] for row in rows]),
    }


BASELINE = build_profile(
    {
        "numeric": np.random.default_rng(0).normal(size=300),
        "discrete": (np.arange(300) % 4 - 1).astype(np.float32),
        "word": text_column(["a", "b", None] * 100),
    }
)


def documents(counts: Counts) -> list[dict[str, object]]:
    return [each.document() for each in counts.tallies]


@given(ROWS, st.lists(st.integers(0, 80), max_size=5))
def test_any_sharding_gives_the_same_counts(rows: list[tuple[float, float, object]], cuts: list[int]) -> None:
    whole = count(BASELINE, columns(rows))
    ends = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    shards = [count(BASELINE, columns(rows[a:b])) for a, b in pairwise(ends)]

    forward, backward = Counts.nothing(BASELINE), Counts.nothing(BASELINE)
    for shard in shards:
        forward += shard
    for shard in reversed(shards):
        backward = shard + backward

    assert documents(forward) == documents(whole) == documents(backward)
    assert forward.rows == len(rows)


@given(ROWS, st.randoms(use_true_random=False))
def test_no_row_is_lost_and_their_order_does_not_matter(
    rows: list[tuple[float, float, object]], random: object
) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    counts = count(BASELINE, columns(rows))

    assert [each.rows for each in counts.tallies] == [len(rows)] * 3
    assert documents(count(BASELINE, columns(shuffled))) == documents(counts)


@given(ROWS)
def test_one_outlier_more_changes_one_bin_by_one(rows: list[tuple[float, float, object]]) -> None:
    before = count(BASELINE, columns(rows)).tallies[0].bins
    after = count(BASELINE, columns([*rows, (1e30, 0.0, None)])).tallies[0].bins

    assert np.abs(after - before).sum() == 1


@settings(max_examples=30)
@given(st.lists(st.floats(-10, 10, width=16), min_size=60, max_size=120, unique=True), st.integers(2, 5))
def test_counts_do_not_change_under_a_strictly_increasing_transform(sample: list[float], scale: int) -> None:
    column = np.array(sample)
    window = column[::2]

    def tallied(transform: np.ufunc | None) -> list[int]:
        change = (lambda values: transform(values / scale)) if transform else (lambda values: values)
        return count(build_profile({"x": change(column)}), {"x": change(window)}).tallies[0].bins.tolist()

    assert tallied(np.exp) == tallied(np.arctan) == tallied(None)


def test_counts_on_the_bins_of_another_baseline_are_refused() -> None:
    other = build_profile({"numeric": np.arange(100.0)})

    with pytest.raises(UsageError, match="cannot be added"):
        Counts.nothing(BASELINE) + Counts.nothing(other)
    with pytest.raises(UsageError):
        BASELINE.features[0].tally + BASELINE.features[1].tally


def test_a_column_that_is_not_there_has_no_rows() -> None:
    counts = count(BASELINE, {"numeric": np.zeros(3), "unknown": np.zeros(3)})

    assert [each.rows for each in counts.tallies] == [3, 0, 0]
    assert count(BASELINE, {}).rows == 0


def test_a_column_of_another_type_is_counted_as_invalid_and_stops_no_other() -> None:
    counts = count(
        BASELINE,
        {
            "numeric": text_column(["x", "1.5", None]),
            "discrete": np.zeros((3, 2)),
            "word": text_column([[1], {}, "a"]),
        },
    )

    assert [each.missing.invalid for each in counts.tallies] == [1, 3, 2]
    assert [each.present for each in counts.tallies] == [1, 0, 1]


def test_float32_traffic_meets_a_float64_baseline_and_the_other_way_round() -> None:
    exact = np.array([0.1, 0.2, 0.3, 0.7] * 50)
    rounded = exact.astype(np.float32)
    expected = [0, 50, 0, 50, 0, 50, 0, 50, 0]

    for baseline, window in ((exact, rounded), (rounded, exact), (rounded, rounded), (exact, exact)):
        tallied = count(build_profile({"x": baseline}), {"x": window}).tallies[0]
        assert tallied.bins.tolist() == expected
        assert (tallied.below, tallied.above) == (0, 0)


def test_a_flood_of_new_categories_is_bounded_and_still_the_same_for_any_sharding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tally, "FRESH_KEPT", 50)
    cells = [f"new{index % 200}" for index in range(1000)]

    whole = count(BASELINE, {"word": text_column(cells)}).tallies[2]
    parts = Counts.nothing(BASELINE)
    for start in range(0, 1000, 130):
        parts += count(BASELINE, {"word": text_column(cells[start : start + 130])})

    assert parts.tallies[2].document() == whole.document()
    assert len(whole.fresh) == 50
    assert set(whole.fresh.values()) == {5}
    assert whole.rows == 1000
