"""Profiles of rows that come in pieces: the same as in memory where they fit, and bounded where not."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UndecidedError
from mlx_platform.drift import bins
from mlx_platform.drift.building import build_in_passes
from mlx_platform.drift.frequent import Frequent
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.summary import Summary


def in_pieces(columns, size):
    """A source of rows for the builder, and how often it was read."""
    passes = []

    def rows(only):
        passes.append(only)
        height = len(next(iter(columns.values())))
        for start in range(0, height, size):
            yield {
                ("input", name): column[start : start + size]
                for name, column in columns.items()
                if only is None or ("input", name) in only
            }

    return rows, passes


CELLS = st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["a", "b", "", "1"]), st.booleans())
NUMBERS = (st.floats(width=64) | st.sampled_from([0.0, 1.0, 2.5])).map(lambda number: number + 0.0)  # no -0.0


@given(
    st.lists(st.tuples(NUMBERS, st.integers(-(2**62), 2**62), CELLS), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_rows_that_fit_give_the_profile_of_the_rows_in_memory(rows, size):
    texts = np.empty(len(rows), object)
    texts[:] = [str(row[2]) if row[2] is not None else None for row in rows]
    columns = {
        "number": np.asarray([row[0] for row in rows]),
        "whole": np.asarray([row[1] for row in rows], np.int64),
        "text": texts,
    }
    source, passes = in_pieces(columns, size)
    built = build_in_passes(source)
    assert built.profile.to_json() == build_profile(columns).to_json()
    assert len(passes) == 1
    assert not built.thinned
    assert not built.tails


def test_edges_of_rows_that_do_not_fit_are_quantiles_to_a_thousandth_and_counts_are_exact():
    generator = np.random.default_rng(0)
    columns = {
        "skewed": generator.lognormal(0, 3, 1_200_000),
        "zeros": np.where(generator.random(1_200_000) < 0.6, 0.0, generator.normal(size=1_200_000)),
        "whole": generator.integers(0, 2**60, 1_200_000),
        "few": generator.integers(0, 5, 1_200_000),
        "ascending": np.arange(1_200_000.0),
    }
    source, passes = in_pieces(columns, 50_000)
    built = build_in_passes(source, exact=10_000)
    exact = build_profile(columns)
    assert len(passes) == 2
    assert set(built.thinned) == set(columns)
    for ours, theirs in zip(built.profile.features, exact.features, strict=True):
        ordered = np.sort(columns[ours.name])
        upto = np.searchsorted(ordered, np.asarray(ours.quantiles), side="right") / len(ordered)
        below = np.searchsorted(ordered, np.asarray(ours.quantiles), side="left") / len(ordered)
        wanted = np.arange(1, bins.FINE_BINS) / bins.FINE_BINS
        assert ((below - 0.001 <= wanted) & (wanted <= upto + 0.001)).all(), ours.name
        assert (ours.kind, ours.dtype, ours.values) == (theirs.kind, theirs.dtype, theirs.values)
        assert ours.tally.rows == 1_200_000
        assert (ours.tally.minimum, ours.tally.maximum) == (theirs.tally.minimum, theirs.tally.maximum)
        assert ours.scale == pytest.approx(theirs.scale, rel=0.01)
    assert built.profile.features[3].tally.bins.tolist() == exact.features[3].tally.bins.tolist()


def test_the_same_rows_give_the_same_baseline_id():
    columns = {"x": np.random.default_rng(1).normal(size=400_000)}
    ids = {build_in_passes(in_pieces(columns, 9_000)[0], exact=1_000).profile.baseline_id for _ in range(2)}
    assert len(ids) == 1


def test_ten_million_categories_leave_a_tail_whose_bound_is_told():
    generator = np.random.default_rng(2)
    texts = np.asarray([f"k{key}" for key in generator.zipf(1.3, 60_000) % 10**9], object)
    source, passes = in_pieces({"city": texts}, 5_000)
    built = build_in_passes(source, keys=2_000)
    feature, truth = built.profile.features[0], Counter(texts.tolist())
    bound = built.tails["city"]
    assert len(passes) == 2
    assert bound > 0
    assert feature.tally.rows == 60_000
    assert feature.tally.other > 0
    named = dict(zip(feature.categories, feature.tally.bins.tolist(), strict=True))
    assert all(truth[key] == count for key, count in named.items())
    assert {key for key, count in truth.items() if count > bound} <= set(named)


@given(st.lists(st.sampled_from("abcdefghij"), max_size=200), st.integers(1, 4))
def test_what_is_more_frequent_than_the_error_is_always_known(keys, most):
    counted = Frequent(keys=most)
    for start in range(0, len(keys), 7):
        counted.add(Counter(keys[start : start + 7]))
    for key, times in Counter(keys).items():
        assert times - counted.error <= counted.counts[key] <= times
    assert counted.error * (most + 1) <= len(keys)


def test_batches_of_different_kinds_are_counted_as_the_kind_that_most_rows_have():
    mixed = np.asarray([*range(30), *("x" * 5)], object)
    feature = build_in_passes(in_pieces({"mixed": mixed}, 5)[0]).profile.features[0]
    assert feature.kind == "discrete"
    assert (feature.tally.present, feature.tally.missing.invalid) == (30, 5)


def test_no_rows_are_no_baseline():
    with pytest.raises(UndecidedError):
        build_in_passes(lambda _only: [])


def test_pieces_of_changing_types_are_promoted():
    summary = Summary(exact=2)
    for piece in (np.arange(5), np.arange(5) + 0.5, np.arange(200_000)):
        summary.add(piece)
    assert summary.rows == 200_010
    assert summary.maximum == 199_999
