"""What runs take: measured at the start for inputs of one shape, learnt for all others as they come."""

from collections.abc import Mapping

from mlx_platform.serving.job import Group

_WEIGHT = 0.1  # of one run against all before it
_GAIN = 0.9  # a batch of twice the rows pays when a row then takes at most so much of the time
_MOST_KNOWN = 1024  # rows for which the seconds are worked out once
_TELLING = 0.002  # seconds; beside the server's own work nobody gains by choosing the size of a shorter run
_SPREAD = 0.75  # two workers pay when they are done in so much of the time of one


class Costs:
    """Seconds of a run by its rows.

    Args:
        curve: seconds by rows of the runs that were timed; {} when none was.
        cells: numbers in the inputs of one of their rows.
        most_rows: of a run.
    """

    def __init__(self, curve: Mapping[int, float], cells: int, most_rows: int) -> None:
        self.known = bool(curve)
        self._points = sorted(curve.items()) if curve else [(1, 1.0)]
        self._cells = cells
        self._scale = 1.0 if curve else 0.0
        self._by_rows: list[float] = []
        self._least = self._curve(most_rows) / most_rows

    def expect(self, group: Group) -> None:
        """Say what to expect of a group before any of it has run."""
        if self.known and self._cells and group.cells:
            group.scale = group.cells / self._cells
        else:
            group.scale = self._scale
        group.pace = group.scale * self._least

    def seconds(self, group: Group, rows: int) -> float:
        """How long a run should take; 0 while nothing is known."""
        return group.scale * self._curve(rows)

    def learn(self, group: Group, rows: int, seconds: float) -> None:
        """Take a run into account."""
        if seconds >= _TELLING:
            group.sizes.learn(rows, seconds)
        scale = seconds / self._curve(rows)
        group.scale += (scale - group.scale) * (_WEIGHT if group.runs else 1.0)
        group.pace = group.scale * self._least
        group.runs += 1
        self._scale += (scale - self._scale) * (_WEIGHT if self._scale else 1.0)

    def gains_by_company(self, rows: int) -> bool:
        """Whether a run of more rows costs less for each of them; taken for granted when nothing is known."""
        return not self.known or self._curve(2 * rows) < 2 * _GAIN * self._curve(rows)

    def gains_by_spreading(self, rows: int, share: int) -> bool:
        """Whether runs of a share each, side by side, are done well before one of all rows."""
        return self._curve(share) < _SPREAD * self._curve(rows)

    def _curve(self, rows: int) -> float:
        """Seconds by rows: straight lines between the measured points, in proportion beyond them."""
        known = self._by_rows
        if rows < len(known):
            return known[rows]
        if rows > _MOST_KNOWN:
            return self._interpolate(rows)
        known += [self._interpolate(count) for count in range(len(known), rows + 1)]
        return known[rows]

    def _interpolate(self, rows: int) -> float:
        below_rows, below = self._points[0]
        for point_rows, point in self._points:
            if rows <= point_rows:
                if rows >= point_rows or point_rows == below_rows:
                    return point
                share = (rows - below_rows) / (point_rows - below_rows)
                return below + (point - below) * share
            below_rows, below = point_rows, point
        return below * rows / below_rows
