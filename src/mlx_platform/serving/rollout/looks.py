"""When a step is looked at, and how much of its chance of a false alarm each look may spend.

A test at 1 % that is asked fifty times is wrong far more often than once in a hundred. So a step plans at
most ten looks, each at a tenth of the level. They lie close together at first, since what is badly broken
shows at once. A step that goes on for longer, as it does while it is paused, is looked at each time that it
has lasted twice as long, at half the level of the look before: together these spend no more than one planned
look does.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import field

from mlx_platform.core.values import frozen
from mlx_platform.serving.rollout.plan import Plan

MOST = 10
_UNBOUNDED_S = 3600.0  # how long a pause without an end plans ahead


@frozen
class Reading:
    """What a source of numbers answered: a value, nothing at all (None), or the error that came instead."""

    value: float | None = None
    error: str = ""


@frozen
class Look:
    """One look.

    `number` counts from 1. `level` is the share of a metric's alpha that it may spend, `late` the share of a
    planned look's that it has: 1 for those, and half as much each time after them. `readings` are the answers
    of outside sources by metric.
    """

    number: int
    elapsed_s: float
    level: float
    late: float = 1.0
    readings: Mapping[str, Reading] = field(default_factory=dict)


@frozen
class Schedule:
    """The planned looks of a step, in seconds since it began."""

    times: tuple[float, ...]

    def due(self, elapsed_s: float, taken: int) -> int | None:
        """The number of the look that is due: the latest whose time has come; None when it is taken.

        Looks that nobody took in their time, such as while every server was away, are left out: they would
        see the same.
        """
        planned = bisect_right(self.times, elapsed_s)
        number = planned
        if planned == len(self.times):
            number += max(0, math.floor(math.log2(max(1.0, elapsed_s / self.times[-1])) + 1e-9))
        return number if number > taken else None

    def look(self, number: int, elapsed_s: float, readings: Mapping[str, Reading] | None = None) -> Look:
        """Look number `number`, with what it may spend."""
        late = 0.5 ** min(max(0, number - len(self.times)), 60)
        return Look(number, elapsed_s, late / len(self.times), late, readings or {})


def planned_looks(look_every_s: float, longest_s: float, hold_s: float = 0.0) -> Schedule:
    """The looks of a step that lasts `longest_s` at most.

    There are as many as `look_every_s` fits into it, and ten at most: then their times grow by a constant
    factor. One of them falls on `hold_s`, when the step may end, and the last one on its end: a step that is
    shorter than `look_every_s` is looked at once, then.
    """
    look_every_s = min(look_every_s, longest_s)
    count = min(MOST, max(1, math.ceil(longest_s / look_every_s - 1e-9)))
    if count == 1:
        return Schedule((longest_s,))
    if longest_s <= look_every_s * MOST:
        times = [min(longest_s, look_every_s * (index + 1)) for index in range(count)]
    else:
        growth = (longest_s / look_every_s) ** (1 / (count - 1))
        times = [look_every_s * growth**index for index in range(count)]
    times[-1] = longest_s
    if times[0] < hold_s < longest_s:
        nearest = min(range(count - 1), key=lambda index: abs(math.log(times[index] / hold_s)))
        times[nearest] = hold_s
    return Schedule(tuple(times))


def schedule_of(plan: Plan, step: int, *, baking: bool = False) -> Schedule:
    """The looks of one step of a plan, or of the time after its promotion."""
    if baking:
        return planned_looks(plan.look_every_s, plan.bake_s or plan.look_every_s)
    found = plan.steps[step]
    longest = found.max_duration_s or (_UNBOUNDED_S if found.kind == "pause" else plan.look_every_s)
    return planned_looks(plan.look_every_s, longest, found.min_duration_s)
