import random

import pytest
from scipy.stats import beta, binom

from mlx_platform.serving.rollout.binomial import (
    lower_tail,
    requests_to_pass,
    upper_bound,
    upper_tail,
)


@pytest.mark.parametrize(
    ("requests", "errors"),
    [(5, 2), (10, 3), (20, 4), (50, 5), (100, 6), (200, 9), (300, 11), (500, 14), (1000, 22)],
)
def test_so_many_errors_are_no_luck_at_one_percent(requests: int, errors: int) -> None:
    assert upper_tail(errors, requests, 0.01) < 0.001 <= upper_tail(errors - 1, requests, 0.01)


@pytest.mark.parametrize(
    ("errors", "requests"), [(0, 299), (1, 473), (2, 628), (3, 773), (4, 913), (5, 1049)]
)
def test_so_many_requests_show_less_than_one_percent(errors: int, requests: int) -> None:
    assert requests_to_pass(errors, 0.01) == requests
    assert upper_bound(errors, requests) < 0.01 <= upper_bound(errors, requests - 1)


def test_tails_and_bounds_are_those_of_scipy_up_to_a_million_requests() -> None:
    drawn = random.Random(1)  # noqa: S311 - a seed, not a secret
    for _ in range(300):
        trials = drawn.choice([1, 7, 299, 5_000, 1_000_000])
        share = drawn.choice([1e-6, 0.01, 0.3, 0.999])
        spread = max(1.0, (trials * share * (1 - share)) ** 0.5)
        count = min(trials, max(0, round(drawn.gauss(trials * share, 4 * spread))))

        assert upper_tail(count, trials, share) == pytest.approx(
            binom.sf(count - 1, trials, share), rel=1e-7, abs=1e-250
        )
        assert lower_tail(count, trials, share) == pytest.approx(
            binom.cdf(count, trials, share), rel=1e-7, abs=1e-250
        )
        expected = 1.0 if count == trials else beta.ppf(0.95, count + 1, trials - count)
        assert upper_bound(count, trials) == pytest.approx(expected, rel=1e-7)


def test_nothing_that_was_tried_shows_nothing() -> None:
    assert upper_tail(0, 0, 0.01) == 1.0
    assert upper_bound(0, 0) == 1.0
    assert (upper_tail(3, 2, 0.5), upper_tail(1, 5, 0.0), upper_tail(5, 5, 1.0)) == (0.0, 0.0, 1.0)
