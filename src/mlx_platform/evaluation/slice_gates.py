"""Answers to gates about slices: one for each slice, and one over all of them.

A gate passes when each of its slices does, so a pass needs no correction: it is no more likely than the pass
of a slice that should not (an intersection-union test; Berger, Technometrics 24, 1982). A failure is the
other way round: among many slices some look bad by chance. So a slice fails only by Holm's procedure over
all slices of the gate; what chance may explain is undecided.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from mlx_platform.core.statistics import holm
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Verdict, worst
from mlx_platform.evaluation.gates import Defaults, Gate, Key
from mlx_platform.evaluation.judge import (
    Judged,
    Known,
    as_warning,
    by_default,
    check_of,
    judge_one,
    outcome_of,
    too_few,
)
from mlx_platform.evaluation.measure import resample_metrics
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import NONE
from mlx_platform.evaluation.scored import effective
from mlx_platform.evaluation.slices import Slice

_NORMAL = NormalDist()
_NAMED = 5
_SEVERITY = (Verdict.FAIL, Verdict.ERROR, Verdict.UNDECIDED, Verdict.PASS)
_WORDS = {
    Verdict.FAIL: ("fails", "fail"),
    Verdict.ERROR: ("cannot be judged", "cannot be judged"),
    Verdict.UNDECIDED: ("is undecided", "are undecided"),
}
"""Of one slice, and of several."""


@dataclass(frozen=True, slots=True)
class Family:
    """A gate's answer over its slices, and the answers about each of them."""

    judged: Judged
    each: Mapping[Key, Judged]


def judge_slices(
    gate: Gate,
    slices: Iterable[Slice],
    defaults: Defaults | None = None,
    *,
    metrics: Mapping[str, Metric] = NONE,
) -> Family:
    """Answer a gate about each of its slices, and over all of them together.

    Args:
        gate: one with slices.
        slices: all slices of the columns that it names, and those that it requires whether they have rows or
            not. Those with fewer rows than the gate asks for need no measurements.
        defaults: what becomes of open questions.
        metrics: the gates' metrics by name.
    """
    rule, defaults = gate.slices, defaults or Defaults()
    if rule is None:
        raise ValueError("a gate without slices")
    mine = [one for one in slices if one.by in rule.by]
    large = [one for one in mine if one.rows >= rule.min_rows]
    plain = replace(gate, warn=False, slices=None)
    answers = [_answer(plain, one, defaults, metrics) for one in large]
    corrected = rule.correct == "holm"
    adjusted = holm([one.p_fail for one in answers]) if corrected else [one.p_fail for one in answers]
    each = {one.key: _too_small(gate, one) for one in mine if one.rows < rule.min_rows}
    for one, answer, p_value in zip(large, answers, adjusted, strict=True):
        each[one.key] = _settled(gate, answer, one, p_value, len(large) if corrected else 0, defaults)
    each = {one.key: each[one.key] for one in mine}
    family = _together(gate, {one.name: each[one.key] for one in mine}, len(large))
    if gate.warn:
        return Family(as_warning(family), {key: as_warning(judged) for key, judged in each.items()})
    return Family(family, each)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer before the correction.

    Attributes:
        judged: the answer.
        p_fail: how likely chance makes it look so bad.
        open: why it is open, where more rows would tell.
    """

    judged: Judged
    p_fail: float = math.nan
    open: str = ""


def _answer(gate: Gate, one: Slice, defaults: Defaults, metrics: Mapping[str, Metric]) -> _Answer:
    known = one.known or Known({})
    # An open question is settled after the correction, not before.
    judged = judge_one(gate, known, replace(defaults, on_inconclusive="undecided"))
    comparison = known.compared(gate)
    if judged.check.skipped or judged.numbers["measured"] is None:
        return _Answer(judged)
    if gate.limit in ("min", "max"):
        return _Answer(judged, _chance(gate, one, known, metrics.get(gate.metric), defaults.seed))
    if comparison is None or math.isnan((outcome := outcome_of(gate, comparison)).p_worse):
        return _Answer(judged)
    return _Answer(judged, outcome.p_worse, too_few(outcome, comparison.rows))


def _chance(gate: Gate, one: Slice, known: Known, metric: Metric | None, seed: int) -> float:
    """The p-value that a value keeps a limit; small where it is shown to miss it."""
    measured, scored = known.measured(gate), one.scored
    if measured is None or scored is None:
        return math.nan
    above = gate.limit == "max"
    if metric is None:  # a share of rows that only a comparison has
        return _chance_of_rate(measured.value, measured.rows, gate.threshold, above=above)
    if metric.trials is not None and scored.groups is None:
        counted = metric.trials(scored).counted
        trials = float(counted.sum()) if scored.weights is None else effective(scored.weights[counted])
        return _chance_of_rate(measured.value, trials, gate.threshold, above=above)
    resampled = resample_metrics(scored, [metric], seed=seed).get(metric.name)
    if resampled is None:  # what has no distribution, such as the largest error, is taken as it is
        missed = measured.value > gate.threshold if above else measured.value < gate.threshold
        return 0.0 if missed else 1.0
    return 1 - (resampled.above(gate.threshold) if above else resampled.below(gate.threshold))


def _chance_of_rate(rate: float, trials: float, limit: float, *, above: bool) -> float:
    """The score test of a rate against a limit, which Wilson's interval inverts."""
    distance = rate - limit if above else limit - rate
    spread = math.sqrt(limit * (1 - limit) / trials) if trials > 0 else 0.0
    if spread == 0:
        return 0.0 if distance > 0 else 1.0
    return _NORMAL.cdf(-distance / spread)


def _settled(
    gate: Gate, answer: _Answer, one: Slice, p_value: float, among: int, defaults: Defaults
) -> Judged:
    """The answer about one slice; `among` how many it was corrected for, 0 without correction."""
    check = answer.judged.check
    verdict, message = check.verdict, check.message
    if verdict is Verdict.FAIL and among and not p_value <= 1 - defaults.confidence:
        verdict = by_default(defaults)
        message = f"beyond the limit, but one of {plural(among, 'slice')} may be so by chance"
    elif verdict is Verdict.UNDECIDED and answer.open:
        verdict, message = by_default(defaults), answer.open
    numbers = dict(answer.judged.numbers) | {"slice": one.name, "rows": one.rows}
    if not math.isnan(p_value):
        numbers["p_adjusted" if among else "p"] = p_value
    if message and not math.isnan(p_value) and among and verdict is not Verdict.PASS:
        message += f" (adjusted p = {p_value:.2g})"
    named = replace(check, verdict=verdict, message=message, group="slices", part=one.name)
    return Judged(gate, named, numbers)


def _too_small(gate: Gate, one: Slice) -> Judged:
    """A slice that is listed, and decides nothing unless the gate requires it."""
    least = gate.slices.min_rows if gate.slices else 0
    required = gate.slices is not None and one.key in gate.slices.require
    have = plural(one.rows, "row") if one.rows else "no rows"
    reason = f"{have}, and a slice is judged from {least:,}"
    check = check_of(gate, Verdict.UNDECIDED, "", reason, skipped="" if required else reason)
    check = replace(check, threshold=gate.bound, group="slices", part=one.name)
    numbers: dict[str, Any] = {"measured": None, "threshold": None, "lower": None, "upper": None}
    limit = gate.threshold if math.isfinite(gate.threshold) else None
    return Judged(gate, check, numbers | {"threshold": limit, "slice": one.name, "rows": one.rows})


def _together(gate: Gate, each: Mapping[str, Judged], large: int) -> Judged:
    """The gate's answer: the worst of its slices, the numbers of the worst one, and which do not pass."""
    counted = {name: judged for name, judged in each.items() if not judged.check.skipped}
    reasons = {judged.check.skipped for judged in each.values() if judged.numbers["rows"] and large}
    numbers: dict[str, Any] = {
        "slices": {
            "judged": large,
            "passed": sum(judged.check.verdict is Verdict.PASS for judged in counted.values()),
            **{
                key: [name for name, judged in counted.items() if judged.check.verdict is verdict]
                for key, verdict in (
                    ("failed", Verdict.FAIL),
                    ("undecided", Verdict.UNDECIDED),
                    ("errors", Verdict.ERROR),
                )
            },
            "left_out": [name for name, judged in each.items() if judged.check.skipped],
        }
    }
    if not counted:
        skipped = "; ".join(sorted(reasons)) if large else ""
        message = skipped or f"no slice has the {gate.slices.min_rows if gate.slices else 0:,} rows it takes"
        check = check_of(gate, Verdict.UNDECIDED, "", message, skipped=skipped)
        limit = gate.threshold if math.isfinite(gate.threshold) else None
        return Judged(
            gate, check, {"measured": None, "threshold": limit, "lower": None, "upper": None} | numbers
        )
    verdict = worst(judged.check.verdict for judged in counted.values())
    name, lowest = min(counted.items(), key=lambda item: _badness(gate, item[1]))
    found = {key: value for key, value in lowest.numbers.items() if key not in ("rows", "p_adjusted", "p")}
    shown = lowest.check.measured or lowest.check.message
    check = check_of(gate, verdict, f"{name}: {shown}", _told(counted, len(each)))
    return Judged(gate, check, found | numbers)


def _badness(gate: Gate, judged: Judged) -> tuple[int, float]:
    """Sorts the worst answer first: by verdict, then by how far beyond the limit."""
    numbers = judged.numbers
    value = numbers.get("gain") if gate.margin or gate.limit == "superiority" else numbers["measured"]
    order = -math.inf if value is None else float(value)
    return _SEVERITY.index(judged.check.verdict), -order if gate.limit == "max" else order


def _told(counted: Mapping[str, Judged], of: int) -> str:
    """How the slices went, such as `2 of 7 slices fail: lang=de; lang=fr. 3 are too small.`."""
    parts = []
    for verdict, (one, many) in _WORDS.items():
        names = [name for name, judged in counted.items() if judged.check.verdict is verdict]
        if names:
            more = f"; and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            listed, word = "; ".join(names[:_NAMED]), one if len(names) == 1 else many
            parts.append(f"{len(names):,} of {plural(len(counted), 'slice')} {word}: {listed}{more}")
    if of > len(counted):
        parts.append(f"{of - len(counted):,} left out")
    return ". ".join(parts)
