"""The windows of an online evaluation, each measured by the rules of the whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from mlx_platform.core.tensors import Array
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.measure import Measurement, measure_scored
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.online import Estimate, Gap, judge_gap
from mlx_platform.evaluation.scored import Scored
from mlx_platform.workflows.online.joined import Joined


@dataclass(frozen=True, slots=True)
class Day:
    """A window of the grid: its rows, those with a label, and its metrics beside the offline ones.

    The gaps are at a level at which a false alarm among all windows of a metric is as rare as one of the
    whole (Bonferroni).
    """

    since: datetime
    answered: int
    labelled: int
    metrics: Mapping[str, Measurement]
    gaps: Mapping[str, Gap]


@dataclass(frozen=True, slots=True)
class Calendar:
    """Measures windows by the rules of the whole."""

    scored: Scored
    metrics: Sequence[Metric]
    confidence: float
    seed: int
    offline: Mapping[str, Estimate | None]
    margins: Mapping[str, Margin]

    def measure(self, joined: Joined, rows: Array) -> tuple[Day, ...]:
        starts = np.array([joined.windows[row].timestamp() for row in rows.tolist()])
        every = sorted({*joined.answered, *joined.windows})
        labelled = {start: np.flatnonzero(starts == start.timestamp()) for start in every}
        measured = sum(bool(len(found)) for found in labelled.values())
        level = 1 - (1 - self.confidence) / max(1, measured)
        return tuple(self._day(start, joined.answered[start], labelled[start], level) for start in every)

    def _day(self, start: datetime, answered: int, rows: Array, level: float) -> Day:
        if not len(rows):
            return Day(start, answered, 0, {}, {})
        scored = self.scored.take(rows)
        found = measure_scored(scored, metrics=list(self.metrics), confidence=self.confidence, seed=self.seed)
        gaps = {}
        for name, one in found.items():
            offline = self.offline[name]
            if offline is not None:
                estimate = Estimate.of(one, self.confidence).at(level)
                gaps[name] = judge_gap(estimate, offline, self.margins[name], scored.effective_rows)
        return Day(start, answered, len(rows), found, gaps)
