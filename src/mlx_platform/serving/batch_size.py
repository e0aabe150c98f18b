"""The rows of a run, chosen by measuring: until more save nothing, take too long, or do not fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mlx_platform.serving import memory

_MOST_ROWS = 1024
_SAVING = 0.95  # twice the rows still help when a row then takes at most so much of the time
_KNEE = 1.1  # the smallest batch is taken whose rows take at most so many times the least
_HEAD_ROOM = 0.85  # of the memory that is there; the rest is for requests, answers and others
_BUDGET_SECONDS = 3.0  # for all runs


@dataclass(frozen=True, slots=True)
class BatchSize:
    """The most rows of a run, and what bounds them.

    Attributes:
        rows: in one run.
        bound: "setting", or of a measurement "throughput", "time", "memory" or "budget".
        row_bytes: memory that one more row of a run took, 0 when that was not measured.
    """

    rows: int
    bound: str = "setting"
    row_bytes: int = 0


def measure(run: Callable[[int], float], longest: float, workers: int) -> tuple[dict[int, float], BatchSize]:
    """Time runs of 1, 2, 4 rows and so on, and choose.

    Args:
        run: the seconds of a run of so many rows.
        longest: seconds that a run may take; what one row takes is always taken.
        workers: how many runs go on at a time, each with its share of memory.

    Returns:
        The seconds by rows, and the choice.
    """
    curve: dict[int, float] = {}
    free, before, spent, rows = memory.available(), memory.resident(), 0.0, 1
    while True:
        curve[rows] = run(rows)
        spent += curve[rows]
        row_bytes = max(0, memory.resident() - before) // rows
        bound = _bound(curve, rows, longest)
        if not bound and free is not None and 2 * rows * row_bytes * workers > _HEAD_ROOM * free:
            bound = "memory"
        if not bound and 3 * spent > _BUDGET_SECONDS:
            bound = "budget"
        if bound:
            return curve, BatchSize(_knee(curve, longest), bound, row_bytes)
        rows *= 2


def _bound(curve: Mapping[int, float], rows: int, longest: float) -> str:
    if curve[rows] > longest:
        return "time"
    # One size may be an unlucky one, so it takes two to tell that more rows save nothing.
    flat = rows >= 4 and curve[rows] / rows > _SAVING**2 * curve[rows // 4] / (rows // 4)
    return "throughput" if flat or rows >= _MOST_ROWS else ""


def _knee(curve: Mapping[int, float], longest: float) -> int:
    fit = {rows: seconds / rows for rows, seconds in curve.items() if seconds <= longest or rows == 1}
    least = min(fit.values())
    return min(rows for rows, seconds in fit.items() if seconds <= _KNEE * least)
