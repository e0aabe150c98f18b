"""A candidate against a baseline on the same rows: what changed, and whether it is no worse than allowed.

Not being significantly different is not the same as being equally good. A loss is ruled out only when its
whole one-sided interval stays within the margin, and shown only when the whole interval lies beyond it;
between the two there is too little data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.statistics import Interval, mcnemar_exact, tango_interval, tango_z
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.measure import resample_metrics, wanted_metrics
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import metrics_of
from mlx_platform.evaluation.resample import Resampled
from mlx_platform.evaluation.scored import Scored

_NORMAL = NormalDist()
_POWER = 0.8
_ONE_PERCENT = 0.01
_MOST_ROWS = 10**9
MIN_ROWS = 30  # fewer rows, or groups of rows, than this do not carry a bootstrap


@dataclass(frozen=True, slots=True)
class Flips:
    """How single answers changed: `won` rows are right now and were not, `lost` rows were and are not."""

    won: int
    lost: int
    agreeing: int
    rows: int

    @property
    def gain(self) -> float:
        """The difference of the two accuracies."""
        return (self.won - self.lost) / self.rows

    @property
    def agreement(self) -> float:
        return self.agreeing / self.rows

    @property
    def p_value(self) -> float:
        """Of McNemar's exact test that both are equally accurate; for the report, never a reason to pass."""
        return mcnemar_exact(self.won, self.lost)


@dataclass(frozen=True, slots=True)
class Difference:
    """Candidate less baseline in one metric, with a two-sided interval; NaN where it cannot be measured.

    `flips` are those among the rows that a rate is about, where both models are judged by the same ones. The
    difference of a package from itself is 0 by definition, and has no interval. `reason` says why a side
    cannot be measured.
    """

    metric: Metric
    candidate: float
    baseline: float
    lower: float
    upper: float
    resampled: tuple[Resampled, Resampled] | None
    flips: Flips | None = None
    reason: str = ""

    @property
    def value(self) -> float:
        return self.candidate - self.baseline


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two models on the same rows.

    `units` is how many independent pieces the rows are: groups of them, or the rows themselves. `identical`
    says that candidate and baseline are the same package, so that nothing can differ.
    """

    rows: int
    units: int
    flips: Flips | None
    differences: dict[str, Difference]
    confidence: float
    identical: bool = False


@dataclass(frozen=True, slots=True)
class Margin:
    """A tolerated loss: an amount in the metric's unit, or a share of the baseline's value.

    `floor` is the loss in the metric's unit that is tolerated however small the baseline's value is.
    """

    amount: float
    relative: bool = False
    floor: float = 0.0

    def of(self, baseline: Any) -> Any:
        """The loss that is tolerated beside a baseline's value, or beside an array of them."""
        room = np.maximum(self.amount * baseline if self.relative else self.amount, self.floor)
        return room if isinstance(baseline, np.ndarray) else float(room)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to one question about a difference.

    Attributes:
        gain: positive when the candidate is better.
        lower: its one-sided bound, less the uncertainty of a relative margin.
        upper: likewise.
        margin: the tolerated loss in the metric's unit.
        rows_needed: how many rows would probably decide, 0 when unknown.
        message: what is in the way.
        p_no_worse: p-value of a loss of the margin or more; small where it is ruled out. NaN when unmeasured.
        p_worse: p-value of a loss of the margin or less; small where more is shown.
    """

    verdict: Verdict
    gain: float
    lower: float
    upper: float
    margin: float
    rows_needed: int = 0
    message: str = ""
    p_no_worse: float = math.nan
    p_worse: float = math.nan


def compare(
    candidate: Scored,
    baseline: Scored,
    *,
    metrics: Sequence[str | Metric] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    identical: bool = False,
) -> Comparison:
    """Compare two sets of answers to the same rows in the same order, with one set of resamples for both.

    Raises:
        UsageError: the two do not answer the same rows, or a metric is unknown.
    """
    if type(candidate) is not type(baseline) or not np.array_equal(candidate.truth, baseline.truth):
        raise UsageError("Only two models of one task that answer the same rows can be compared.")
    wanted = wanted_metrics(candidate, metrics)
    # Counts of flips say nothing where rows weigh differently or depend on each other.
    plain = candidate.weights is None and candidate.groups is None
    counted = {one.name: _flips(one, candidate, baseline) for one in wanted} if plain else {}
    if identical:
        counted = {}
    drawn = [] if identical else [metric for metric in wanted if not counted.get(metric.name)]
    sides = [resample_metrics(scored, drawn, seed=seed) for scored in (candidate, baseline)]
    differences = {
        metric.name: _difference(
            metric, candidate, baseline, (sides[0], sides[1]), counted.get(metric.name), confidence
        )
        for metric in wanted
    }
    flips = _flips(_primary(candidate), candidate, baseline)
    return Comparison(candidate.rows, candidate.units, flips, differences, confidence, identical)


def _primary(scored: Scored) -> Metric:
    return metrics_of(scored.task)[0]


def _flips(metric: Metric, candidate: Scored, baseline: Scored) -> Flips | None:
    """How answers changed among the rows that a rate is about; None for what is no rate of the same rows."""
    if metric.trials is None or not metric.paired or metric.obstacle(candidate):
        return None
    counted, right = metric.trials(candidate)
    was_right = metric.trials(baseline).right[counted]
    right = right[counted]
    same = candidate.answer[counted] == baseline.answer[counted]
    return Flips(
        won=int((right & ~was_right).sum()),
        lost=int((~right & was_right).sum()),
        agreeing=int(same.reshape(len(right), -1).all(axis=1).sum()),
        rows=len(right),
    )


def _difference(
    metric: Metric,
    candidate: Scored,
    baseline: Scored,
    resampled: tuple[dict[str, Resampled], dict[str, Resampled]],
    flips: Flips | None,
    confidence: float,
) -> Difference:
    values = metric.of(candidate), metric.of(baseline)
    interval = Interval(math.nan, math.nan)
    pair = None
    if all(metric.name in side for side in resampled):
        pair = resampled[0][metric.name], resampled[1][metric.name]
        interval = pair[0].combine(pair[1], np.subtract).paired_interval(candidate.units, confidence)
    if flips and flips.rows:
        interval = tango_interval(flips.won, flips.lost, flips.rows, confidence)
    unmeasured = next(
        (side for side, value in zip((candidate, baseline), values, strict=True) if not math.isfinite(value)),
        None,
    )
    reason = "" if unmeasured is None else metric.obstacle(unmeasured) or metric.undefined
    return Difference(metric, *values, interval.lower, interval.upper, pair, flips, reason)


def no_worse(comparison: Comparison, name: str, margin: Margin) -> Outcome:
    """Whether the candidate loses less than the margin in a metric, at the comparison's one-sided level.

    Rates are decided by Tango's score test, everything else by the paired bootstrap.
    """
    difference = comparison.differences[name]
    if margin.relative and difference.baseline <= 0:
        message = (
            f"the baseline's {name} is {difference.baseline:.4g}, and a share of that is no margin: "
            "write the tolerated change as an amount, such as 0.01abs"
        )
        return _unmeasured(difference, Verdict.ERROR, message)
    return _decide(comparison, difference, margin)


def better(comparison: Comparison, name: str) -> Outcome:
    """Whether the candidate is better in a metric, at the comparison's one-sided level."""
    return _decide(comparison, comparison.differences[name], Margin(0.0))


def _unmeasured(difference: Difference, verdict: Verdict, message: str) -> Outcome:
    nan = math.nan
    return Outcome(verdict, difference.metric.sign * difference.value, nan, nan, nan, message=message)


def _decide(comparison: Comparison, difference: Difference, margin: Margin) -> Outcome:
    metric = difference.metric
    gain = metric.sign * difference.value
    if comparison.identical:
        verdict = Verdict.PASS if margin.of(1.0) > 0 else Verdict.FAIL
        return Outcome(
            verdict, 0.0, 0.0, 0.0, margin.of(difference.baseline), 0, "the same package on both sides"
        )
    if not math.isfinite(gain):
        side = "candidate" if not math.isfinite(difference.candidate) else "baseline"
        return _unmeasured(difference, Verdict.UNDECIDED, f"not measured for the {side}: {difference.reason}")
    if difference.flips:
        return _decide_by_flips(comparison, difference.flips, margin.of(difference.baseline))
    if difference.resampled is None:
        return _unmeasured(difference, Verdict.UNDECIDED, f"no paired test exists for {metric.name}")
    return _decide_by_resampling(comparison, difference, margin)


def _decide_by_flips(comparison: Comparison, flips: Flips, margin: float) -> Outcome:
    confidence = comparison.confidence
    z = tango_z(flips.won, flips.lost, flips.rows, margin)
    bounds = tango_interval(flips.won, flips.lost, flips.rows, 2 * confidence - 1)
    share = (flips.won + flips.lost) / flips.rows
    error = math.sqrt(max(0.0, share - flips.gain**2) / flips.rows)
    least = _rows_without_flips(margin, confidence) if margin > 0 else 0
    return _outcome(
        confidence,
        p_no_worse=_NORMAL.cdf(-z),
        p_worse=_NORMAL.cdf(z),
        gain=flips.gain,
        bounds=bounds,
        margin=margin,
        needed=_in_rows(
            comparison,
            flips.rows,
            rows_needed(flips.rows, error, margin, flips.gain, confidence, least=least),
        ),
    )


def _in_rows(comparison: Comparison, of: int, needed: int) -> int:
    """Rows in all, where so many groups or rows of one class are needed of the `of` that there are."""
    return math.ceil(needed * comparison.rows / of) if of else needed


def _decide_by_resampling(comparison: Comparison, difference: Difference, margin: Margin) -> Outcome:
    metric, units, confidence = difference.metric, comparison.units, comparison.confidence
    candidate, baseline = difference.resampled or (None, None)
    if candidate is None or baseline is None:
        raise ValueError("a difference without resamples")
    sign = metric.sign
    # The margin is resampled with the baseline: a share of an uncertain number is uncertain too.
    room = candidate.combine(baseline, lambda new, old: sign * (new - old) + margin.of(old))
    tolerated = margin.of(difference.baseline)
    bounds = room.paired_interval(units, 2 * confidence - 1)
    gain = sign * difference.value
    if math.isnan(bounds.lower):
        return _unmeasured(difference, Verdict.UNDECIDED, "not defined on too many resamples")
    least = MIN_ROWS
    p_no_worse, p_worse = 1 - room.paired_above(units, 0.0), 1 - room.paired_below(units, 0.0)
    # Looked for in the difference alone: a margin that is a share varies with the baseline all the same.
    if candidate.combine(baseline, np.subtract).error == 0:
        # Where no resample differs, the rows must be enough to have met a difference of the margin's size.
        share = tolerated if metric.unit == "share" else _ONE_PERCENT
        least = max(least, _rows_without_flips(share, confidence))
        chance = _chance_of_no_flip(share, units)
        p_no_worse, p_worse = max(p_no_worse, chance), max(p_worse, chance)
    if units < MIN_ROWS:
        p_no_worse = p_worse = 1.0
    return _outcome(
        confidence,
        p_no_worse=p_no_worse,
        p_worse=p_worse,
        gain=gain,
        bounds=Interval(bounds.lower - tolerated, bounds.upper - tolerated),
        margin=tolerated,
        needed=_in_rows(
            comparison, units, rows_needed(units, room.error, tolerated, gain, confidence, least=least)
        ),
    )


def _outcome(
    confidence: float,
    *,
    p_no_worse: float,
    p_worse: float,
    gain: float,
    bounds: Interval,
    margin: float,
    needed: int,
) -> Outcome:
    level = 1 - confidence
    verdict = Verdict.PASS if p_no_worse < level else Verdict.FAIL if p_worse < level else Verdict.UNDECIDED
    return Outcome(
        verdict,
        gain,
        bounds.lower,
        bounds.upper,
        margin,
        needed if verdict is Verdict.UNDECIDED else 0,
        p_no_worse=p_no_worse,
        p_worse=p_worse,
    )


def rows_needed(
    rows: int, error: float, margin: float, gain: float, confidence: float = 0.95, *, least: int = 0
) -> int:
    """How many rows would rule out a loss of `margin` with 80 % power.

    n = (z_confidence + z_power)^2 * rows * error^2 / distance^2, where the distance is the margin if both are
    equally good. Where that many rows are already there, it is the distance of the observed gain from the
    margin. With a change in 5 % of the rows and a margin of one point this is 618 * 5 = 3,090.

    Args:
        rows: how many there are.
        error: standard error of the gain on them.
        margin: the tolerated loss, 0 for a test of superiority.
        gain: the observed one.
        confidence: one-sided.
        least: no fewer rows than these decide, even where nothing changed at all.

    Returns:
        0 when no number of rows would decide.
    """
    width = (_NORMAL.inv_cdf(confidence) + _NORMAL.inv_cdf(_POWER)) * error
    for distance in (margin, abs(gain + margin)):
        if distance <= 0:
            continue
        needed = max(math.ceil(rows * (width / distance) ** 2), least)
        if needed > rows:
            return needed if needed <= _MOST_ROWS else 0
    return 0


def _rows_without_flips(margin: float, confidence: float) -> int:
    """The fewest rows on which Tango's test rules out the margin when no answer changed at all."""
    if margin <= 0:
        return _MOST_ROWS
    z = _NORMAL.inv_cdf(confidence)
    return math.floor(z * z * max(0.0, 1 - margin) / margin) + 1


def _chance_of_no_flip(margin: float, rows: int) -> float:
    """The p-value that Tango's test gives to a loss of the margin when no answer changed at all."""
    if margin <= 0:
        return 1.0
    return _NORMAL.cdf(-math.sqrt(rows * margin / (1 - margin))) if margin < 1 else 0.0
