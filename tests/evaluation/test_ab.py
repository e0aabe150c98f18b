import math

import numpy as np
import pytest
from scipy import stats

from mlx_platform.core.errors import UsageError
from mlx_platform.evaluation.ab import (
    Difference,
    Sample,
    difference,
    required_samples,
    student_quantile,
    student_tail,
)


def yes(count: int, of: int) -> Sample:
    share = count / of
    return Sample(of, share, share * (1 - share) * of / (of - 1), binary=True)


def numbers(values: object) -> Sample:
    array = np.asarray(values, dtype=float)
    return Sample(len(array), float(array.mean()), float(array.var(ddof=1)), binary=False)


def power_of(base: float, other: float, stable: int, candidate: int, alpha: float) -> float:
    """The exact power of the pooled test, summed over what both arms may come to."""
    theirs = np.arange(stable + 1)
    total = 0.0
    chances = stats.binom.pmf(theirs, stable, base)
    for count in theirs[chances > 1e-7]:
        ours = np.arange(candidate + 1)
        pooled = (count + ours) / (stable + candidate)
        error = np.sqrt(np.maximum(1e-300, pooled * (1 - pooled)) * (1 / stable + 1 / candidate))
        z = np.abs(ours / candidate - count / stable) / error
        hits = 2 * stats.norm.sf(z) < alpha
        total += chances[count] * float(stats.binom.pmf(ours, candidate, other)[hits].sum())
    return total


@pytest.mark.parametrize(("base", "effect", "share"), [(0.3, 0.1, 0.5), (0.5, 0.08, 0.5), (0.3, 0.12, 0.2)])
def test_the_planned_samples_find_the_difference_as_often_as_they_should(
    base: float, effect: float, share: float
) -> None:
    stable, candidate = required_samples(base=base, effect=effect, share=share)

    assert candidate / (stable + candidate) == pytest.approx(share, abs=0.002)
    for other in (base - effect, base + effect):
        assert power_of(base, other, stable, candidate, 0.05) > 0.785
    assert power_of(base, base + effect, stable // 2, candidate // 2, 0.05) < 0.65


def test_numbers_are_planned_by_their_deviation() -> None:
    stable, candidate = required_samples(base=100.0, effect=1.0, deviation=10.0, alpha=0.05, power=0.8)

    assert stable == candidate == 1570  # 2 (1.960 + 0.842)^2 10^2
    uneven = required_samples(base=100.0, effect=1.0, deviation=10.0, share=0.1)
    assert uneven == (7849, 873) or sum(uneven) == pytest.approx(1570 * 2 / (4 * 0.1 * 0.9), rel=0.001)


@pytest.mark.parametrize(("base", "effect"), [(0.0, 0.1), (1.0, 0.1), (0.5, 0.6), (0.5, 1e-9), (12.0, 1.0)])
def test_what_cannot_be_planned_is_refused(base: float, effect: float) -> None:
    with pytest.raises(UsageError):
        required_samples(base=base, effect=effect)


@pytest.mark.parametrize("degrees", [1.0, 3.7, 30.0, 5000.0])
@pytest.mark.parametrize("statistic", [0.0, 0.5, 2.0, 6.0])
def test_students_t_is_that_of_scipy(degrees: float, statistic: float) -> None:
    assert student_tail(statistic, degrees) == pytest.approx(stats.t.sf(statistic, degrees), rel=1e-9)
    assert student_quantile(0.975, degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-9)


def test_numbers_are_compared_as_welch_does() -> None:
    generator = np.random.default_rng(2)
    theirs, ours = generator.normal(5, 1, 80), generator.normal(5.4, 3, 30)
    found = difference(numbers(theirs), numbers(ours))
    expected = stats.ttest_ind(ours, theirs, equal_var=False)

    assert found.p == pytest.approx(expected.pvalue)
    assert (found.lower, found.upper) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_shares_have_the_intervals_that_newcombe_published() -> None:
    # Statistics in Medicine 17, 1998, table II, method 10: 56/70 and 48/80; 9/10 and 3/10.
    first = difference(yes(48, 80), yes(56, 70))
    second = difference(yes(3, 10), yes(9, 10))

    assert (first.lower, first.upper) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert (second.lower, second.upper) == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_shares_have_the_p_value_of_the_chi_square_without_correction() -> None:
    expected = stats.chi2_contingency([[48, 32], [56, 14]], correction=False).pvalue

    assert difference(yes(48, 80), yes(56, 70)).p == pytest.approx(expected)
    assert difference(yes(0, 80), yes(0, 70)).p == 1.0


def test_too_little_says_nothing_and_constants_say_what_they_are() -> None:
    alone = difference(yes(40, 80), Sample(1, 1.0, 0.0, binary=True))
    assert math.isnan(alone.p)
    assert alone.winner(0.05, higher_is_better=True) == "none"

    same = difference(numbers([2, 2, 2]), numbers([2, 2, 2]))
    assert (same.value, same.p) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "p", "higher", "winner"),
    [
        (0.1, 0.01, True, "candidate"),
        (0.1, 0.01, False, "stable"),
        (-0.1, 0.01, True, "stable"),
        (-0.1, 0.01, False, "candidate"),
        (0.1, 0.05, True, "none"),
        (0.1, math.nan, True, "none"),
    ],
)
def test_a_winner_needs_a_difference_that_is_no_luck(
    value: float, p: float, higher: bool, winner: str
) -> None:
    assert Difference(value, 0, 0, p, "").winner(0.05, higher_is_better=higher) == winner


def test_versions_that_do_not_differ_have_a_winner_as_often_as_the_level_says() -> None:
    generator = np.random.default_rng(11)
    wins = 0
    for theirs, ours in generator.binomial(500, 0.2, (2000, 2)).tolist():
        wins += difference(yes(theirs, 500), yes(ours, 500)).winner(0.05, higher_is_better=True) != "none"

    assert 0.035 < wins / 2000 < 0.065
