from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mlx_platform.core.errors import UsageError
from mlx_platform.quantize.calibrate import Histogram, Range
from mlx_platform.quantize.rule import Rule, parse_rule

FLOATS = npst.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
)
RULES = [Rule(), Rule("percentile", 99.0), Rule("entropy")]


def histogram_of(values: np.ndarray) -> Histogram:
    histogram = Histogram()
    histogram.add(values.astype(np.float32))
    return histogram


def clipping_error(values: np.ndarray, found: Range) -> float:
    """The mean square of what an 8-bit scale over a range makes of numbers, less the numbers."""
    step = (found.highest - found.lowest) / 255
    coarse = found.lowest + np.round((values.clip(found.lowest, found.highest) - found.lowest) / step) * step
    return float(np.mean((values - coarse) ** 2))


@given(values=FLOATS, percent=st.floats(50, 100))
def test_a_percentile_range_holds_its_share_of_the_magnitudes(values: np.ndarray, percent: float) -> None:
    histogram = histogram_of(values)
    found = Rule("percentile", percent).range(histogram)
    threshold = max(-found.lowest, found.highest)

    assert (
        np.mean(np.abs(values) <= max(threshold, 0)) >= percent / 100 - 1e-9 or threshold >= histogram.limit
    )


@given(values=FLOATS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_range_is_wider_than_the_extremes(rule: Rule, values: np.ndarray) -> None:
    found = rule.range(histogram_of(values))

    assert values.min() <= found.lowest
    assert found.highest <= values.max()


def test_one_outlier_does_not_widen_a_percentile_range() -> None:
    values = np.concatenate([np.full(9999, 0.75), [1000.0]])

    assert Rule("percentile", 99.9).range(histogram_of(values)) == Range(0.75, 1.0)
    assert Rule("minmax").range(histogram_of(values)).highest == 1000.0


def test_entropy_gives_up_a_thin_tail_for_finer_steps() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 100_000), rng.uniform(20, 40, 20)])
    histogram = histogram_of(values)

    plain, chosen = (Rule(method).range(histogram) for method in ("minmax", "entropy"))

    assert plain.highest > 35
    assert 2 < chosen.highest < 8
    assert clipping_error(values[:100_000], chosen) < clipping_error(values[:100_000], plain) / 10


def test_entropy_keeps_the_range_of_numbers_that_are_spread_evenly() -> None:
    histogram = histogram_of(np.random.default_rng(0).uniform(-1, 1, 200_000))

    found = Rule("entropy").range(histogram)

    assert found.highest > 0.95
    assert found.lowest < -0.95


def test_the_zeros_of_a_relu_do_not_move_the_threshold() -> None:
    positive = np.abs(np.random.default_rng(0).normal(0, 1, 50_000))
    rule = Rule("entropy")

    alone = rule.range(histogram_of(positive))
    beside = rule.range(histogram_of(np.concatenate([positive, np.zeros(500_000)])))

    assert beside.highest == pytest.approx(alone.highest, rel=0.1)
    assert beside.lowest == 0


@pytest.mark.parametrize("values", [[0.0, 0.0], [3.0], [-2.0, -2.0], [0.0, 1.0], [-1e-40, 1e30]])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_constants_and_masks_keep_their_extremes(values: list[float], rule: Rule) -> None:
    numbers = np.array(values, np.float32)

    assert rule.range(histogram_of(numbers)) == Range(float(numbers.min()), float(numbers.max()))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("minmax", Rule("minmax")),
        ("percentile", Rule("percentile", 99.99)),
        (" Percentile:99.9", Rule("percentile", 99.9)),
        ("entropy", Rule("entropy")),
    ],
)
def test_a_rule_is_read_as_it_is_written(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("minmaxx", {"match": "'minmaxx' is no way"}),
        ("entropy:5", {"match": "no way"}),
        ("percentile:5", {"match": "cannot hold 5 %"}),
        ("percentile:nan", {"match": "cannot hold nan"}),
        ("percentile:101", {"match": "cannot hold"}),
        ("", {"match": "no way"}),
    ],
)
def test_a_rule_that_means_nothing_is_refused(text: str, said: dict[str, Any]) -> None:
    with pytest.raises(UsageError, **said):
        parse_rule(text)
