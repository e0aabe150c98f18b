"""Rows that were logged with different shares, and what they say together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings
from mlx_platform.drift.counts import Counts, count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.strata import Strata, share_of
from mlx_platform.drift.verdict import compare

GENERATOR = np.random.default_rng(0)
PROFILE = build_profile(
    {
        "number": GENERATOR.normal(size=5000),
        "city": np.asarray(GENERATOR.choice(["a", "b", "c"], 5000, p=[0.6, 0.3, 0.1]), object),
    }
)


def counted(numbers: np.ndarray, cities: np.ndarray | None = None) -> Counts:
    cities = np.asarray(["a"] * len(numbers), object) if cities is None else cities
    return count(PROFILE, {"number": numbers, "city": cities})


def psi(counts: Counts) -> float:
    return compare(PROFILE, counts, DriftSettings())[0].psi


def test_rows_of_one_share_are_judged_as_they_are():
    counts = counted(GENERATOR.normal(size=300))
    assert Strata.of(counts, 0.01).effective(PROFILE) is counts


def test_a_log_that_was_sampled_for_half_of_the_time_gives_the_psi_of_the_whole_log():
    """By day values are large, by night small; at night every request is logged, by day one in four."""
    errors = []
    for seed in range(30):
        generator = np.random.default_rng(seed)
        night, day = generator.normal(-0.2, 1, 20_000), generator.normal(2, 1, 20_000)
        whole = psi(counted(np.concatenate([night, day])))
        logged = counted(day[generator.random(20_000) < 0.25])
        together = Strata.of(counted(night)) + Strata.of(logged, 0.25)
        errors.append(psi(together.effective(PROFILE)) - whole)
        naive = psi(counted(night) + logged)
    spread = np.std(errors) / np.sqrt(len(errors))
    assert abs(np.mean(errors)) < 4 * spread + 0.001
    assert abs(naive - whole) > 0.05  # what counting every row alike would have said


def test_the_effective_rows_are_those_of_kish():
    one, other = counted(GENERATOR.normal(size=1000)), counted(GENERATOR.normal(size=100))
    effective = (Strata.of(one) + Strata.of(other, 0.1)).effective(PROFILE)
    assert effective.rows == round(2000**2 / (1000 + 100 * 100))
    assert [tally.rows for tally in effective.tallies] == [effective.rows] * 2


def test_without_drift_weighted_rows_do_not_alarm_more_often_than_equal_ones():
    alarms = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        parts = Strata.of(counted(generator.normal(size=600))) + Strata.of(
            counted(generator.normal(size=60)), 0.05
        )
        found = compare(PROFILE, parts.effective(PROFILE), DriftSettings())[0]
        alarms += (found.p_value or 0) < 0.05
    assert alarms <= 20  # 10 are expected; more come up in one of 500 runs


CITIES = st.lists(st.sampled_from(["a", "b", "new", None, 7]), max_size=12)


@given(st.lists(st.tuples(CITIES, st.sampled_from([1.0, 0.5, 0.1])), min_size=1, max_size=6), st.randoms())
def test_shards_add_up_to_the_same_in_any_order(parts, order):
    def total(pieces):
        whole = Strata(PROFILE.baseline_id, {})
        for cities, share in pieces:
            cells = np.empty(len(cities), object)
            cells[:] = cities
            whole = whole + Strata.of(counted(np.zeros(len(cities)), cells), share)
        return whole

    shuffled = list(parts)
    order.shuffle(shuffled)
    first, second = total(parts), total(shuffled)
    assert first.document() == second.document()
    assert Strata.from_document(PROFILE.baseline_id, first.document()).document() == first.document()
    effective = first.effective(PROFILE)
    assert all(tally.rows == effective.tallies[0].rows for tally in effective.tallies)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_sampling_that_is_no_share_is_refused(share):
    with pytest.raises(UsageError):
        share_of(share)


def test_sampling_that_adapts_all_the_time_is_told_apart_to_four_digits():
    assert len({share_of(0.5 + step / 1e7) for step in range(2000)}) == 3


def test_counts_of_another_baseline_are_refused():
    other = build_profile({"number": np.arange(9.0)})
    with pytest.raises(UsageError, match="cannot be added"):
        Strata.of(Counts.nothing(PROFILE)) + Strata.of(Counts.nothing(other))
