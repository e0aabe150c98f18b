import math

import pytest

from mlx_platform.serving.rollout.looks import MOST, planned_looks, schedule_of
from mlx_platform.serving.rollout.plan import Plan, Step


def test_a_long_step_plans_ten_looks_that_are_dense_at_first() -> None:
    schedule = planned_looks(30, 1800)

    assert len(schedule.times) == MOST
    assert (schedule.times[0], schedule.times[-1]) == (30, 1800)
    growth = [later / earlier for earlier, later in zip(schedule.times, schedule.times[1:], strict=False)]
    assert growth == pytest.approx([60 ** (1 / 9)] * 9)


def test_a_short_step_is_looked_at_as_often_as_there_is_time_for() -> None:
    assert planned_looks(30, 120).times == (30, 60, 90, 120)
    assert planned_looks(30, 100).times == (30, 60, 90, 100)


def test_one_look_falls_on_the_moment_from_which_the_step_may_end() -> None:
    times = planned_looks(30, 1800, 120).times

    assert 120 in times
    assert len(times) == MOST
    assert list(times) == sorted(times)


@pytest.mark.parametrize(
    ("elapsed", "taken", "expected"),
    [
        (29.9, 0, None),
        (30, 0, 1),
        (30, 1, None),
        (60, 1, 2),
        (119.9, 1, 3),  # what was missed is left out
        (120, 3, 4),
        (239.9, 4, None),
        (240, 4, 5),
        (480, 5, 6),
        (100_000, 4, 13),
    ],
)
def test_a_look_is_due_once_and_later_ones_whenever_the_time_has_doubled(
    elapsed: float, taken: int, expected: int | None
) -> None:
    assert planned_looks(30, 120).due(elapsed, taken) == expected


def test_what_is_shorter_than_the_time_between_looks_is_looked_at_at_its_end() -> None:
    steps = (Step("weight", 5, 300, 30, 300), Step("pause", max_duration_s=5), Step("weight", 100, bake_s=10))
    plan = Plan(steps=steps, look_every_s=30)

    assert planned_looks(30, 10).times == (10,)
    assert schedule_of(plan, 1).times == (5,)
    assert schedule_of(plan, 2, baking=True).times == (10,)


def test_planned_looks_share_the_level_and_all_later_ones_together_spend_one_more() -> None:
    schedule = planned_looks(30, 120)
    levels = [schedule.look(number, 0.0).level for number in range(1, 60)]

    assert levels[:5] == [0.25, 0.25, 0.25, 0.25, 0.125]
    assert sum(levels[4:]) == pytest.approx(0.25)
    assert [schedule.look(number, 0.0).late for number in (1, 4, 5, 6)] == [1, 1, 0.5, 0.25]
    assert schedule.look(10**9, 0.0).level > 0


def test_pauses_and_the_time_after_a_promotion_have_looks_of_their_own() -> None:
    plan = Plan(
        steps=(
            Step("weight", 5, 300, 120, 1800),
            Step("pause", max_duration_s=None),
            Step("pause", max_duration_s=90),
            Step("weight", 100, bake_s=900),
        ),
        look_every_s=30,
    )

    assert schedule_of(plan, 0).times[-1] == 1800
    assert schedule_of(plan, 1).times[-1] == 3600
    assert schedule_of(plan, 2).times == (30, 60, 90)
    assert schedule_of(plan, 3, baking=True).times[-1] == 900
    assert all(math.isfinite(time) for time in schedule_of(plan, 3).times)
