import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_platform.workflows.reports.scale import Scale, scale_of

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(NUMBERS, max_size=20), st.booleans())
def test_every_value_and_tick_lies_within_the_drawing(values: list[float], round_ends: bool) -> None:
    scale = scale_of([*values, math.nan, math.inf], 16.0, 324.0, round_ends=round_ends)

    assert scale.low < scale.high
    assert all(scale.low <= value <= scale.high for value in values)
    assert all(15.9 <= tick.position <= 324.1 for tick in scale.ticks())
    assert len(scale.ticks()) <= 7


def test_ticks_are_round_and_have_the_decimals_they_need() -> None:
    assert [tick.text for tick in Scale(0.0, 1.0, 0, 100).ticks(6)] == [
        "0.0",
        "0.2",
        "0.4",
        "0.6",
        "0.8",
        "1.0",
    ]
    assert [tick.text for tick in Scale(0.9, 1.0, 0, 100).ticks(5)] == [
        "0.900",
        "0.925",
        "0.950",
        "0.975",
        "1.000",
    ]
    assert [tick.text for tick in Scale(-2000, 2000, 0, 100).ticks(5)] == [
        "-2,000",
        "-1,000",
        "0",
        "1,000",
        "2,000",
    ]


def test_a_scale_may_run_downwards() -> None:
    scale = Scale(0.0, 10.0, 100.0, 0.0)

    assert [scale(value) for value in (0, 5, 10, 20, -3)] == pytest.approx([100, 50, 0, 0, 100])
