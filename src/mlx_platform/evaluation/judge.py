"""Answers to gates: measurements and a comparison in, a check for each gate out."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_platform.core.statistics import wilson
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.compare import Comparison, Margin, Outcome, better, no_worse
from mlx_platform.evaluation.gates import Defaults, Gate
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.ratio import Ratio

WARN_ONLY = "level = warn: it never decides"
NO_BASELINE = "there is no baseline to compare with"
NO_GUARD = "there is nothing to guard against yet"
ITSELF = "candidate and baseline are the same package: there is nothing to compare"


@dataclass(frozen=True, slots=True)
class Known:
    """What gates are answered by.

    Attributes:
        measurements: of the candidate, by metric.
        comparison: with the baseline; None when there is none.
        guards: with what gates compare with besides the baseline, by its name; without the missing ones.
        ratios: candidate over baseline of latencies and sizes, by metric.
    """

    measurements: Mapping[str, Measurement]
    comparison: Comparison | None = None
    guards: Mapping[str, Comparison] = field(default_factory=dict)
    ratios: Mapping[str, Ratio] = field(default_factory=dict)

    def compared(self, gate: Gate) -> Comparison | None:
        """The comparison that a gate is about."""
        return self.guards.get(gate.guard) if gate.guard else self.comparison

    def measured(self, gate: Gate) -> Measurement | None:
        """The number that a gate's `min` or `max` is about."""
        return {**self.measurements, **pair_measurements(self.comparison)}.get(gate.metric)


@dataclass(frozen=True, slots=True)
class Judged:
    """A gate with its answer, for people (`check`) and as numbers (JSON-ready).

    The numbers of a limit are the value and the limit; those of a drop or a rise are the difference from the
    baseline and the difference that is allowed, with the one-sided bounds of the gain.
    """

    gate: Gate
    check: Check
    numbers: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        """The answer, JSON-ready: `measured` and `threshold` are numbers that compare with each other."""
        return {
            "name": self.gate.name,
            "metric": self.gate.metric,
            "limit": self.gate.limit,
            "level": "warn" if self.gate.warn else "fail",
            "line": self.gate.line or None,
            "verdict": str(self.check.verdict),
            "shown": self.check.measured,
            "message": self.check.message,
            "skipped": self.check.skipped,
            **self.numbers,
        }


def judge(gates: Iterable[Gate], known: Known, defaults: Defaults | None = None) -> tuple[Judged, ...]:
    """Answer every gate that is about all rows together; see `slices` for the others.

    Limits (`min`, `max`) compare the value itself; drops, superiority and ratios use their tests. What cannot
    be measured or compared is undecided or an error, never a pass.

    Args:
        gates: the questions, for metrics that were measured.
        known: what they are answered by.
        defaults: what becomes of open questions.
    """
    return tuple(judge_one(gate, known, defaults or Defaults()) for gate in gates)


def pair_measurements(comparison: Comparison | None) -> dict[str, Measurement]:
    """The shares of rows that only a comparison knows: agreement, flips won and lost."""
    if comparison is None or comparison.flips is None:
        return {}
    flips = comparison.flips
    counts = {"agreement": flips.agreeing, "flips_won": flips.won, "flips_lost": flips.lost}
    measured = {}
    for name, count in counts.items():
        interval = wilson(count, flips.rows, comparison.confidence)
        higher = name != "flips_lost"
        measured[name] = Measurement(
            name, count / flips.rows, interval.lower, interval.upper, flips.rows, "share", higher
        )
    return measured


def judge_one(gate: Gate, known: Known, defaults: Defaults) -> Judged:
    """Answer one gate."""
    comparison = known.compared(gate)
    if gate.limit == "max_ratio":
        judged = _by_ratio(gate, known.ratios.get(gate.metric), comparison, defaults)
    elif gate.needs_baseline and comparison is None:
        judged = _without_baseline(gate, defaults, NO_GUARD if gate.guard else NO_BASELINE)
    elif gate.needs_baseline and comparison is not None and comparison.identical:
        # Also what only counts answers: that all of them agree with themselves says nothing.
        judged = _against_itself(gate, defaults)
    elif gate.limit in ("min", "max"):
        judged = _absolute(gate, known.measured(gate))
    else:
        judged = _paired(gate, comparison, defaults)
    return as_warning(judged) if gate.warn else judged


def as_warning(judged: Judged) -> Judged:
    """An answer that decides nothing."""
    missed = "" if judged.check.verdict is Verdict.PASS else f"{judged.check.verdict}, but "
    return replace(judged, check=replace(judged.check, skipped=judged.check.skipped or missed + WARN_ONLY))


def outcome_of(gate: Gate, comparison: Comparison) -> Outcome:
    """The test that a drop, a rise or superiority asks for."""
    if gate.limit == "superiority":
        return better(comparison, gate.metric)
    return no_worse(comparison, gate.metric, gate.margin or Margin(0.0))


def check_of(gate: Gate, verdict: Verdict, measured: str, message: str = "", *, skipped: str = "") -> Check:
    """An answer for people, with the place where the gate asks."""
    bound = f"{gate.bound} by {gate.slices.shown}" if gate.slices else gate.bound
    return Check(
        name=gate.metric,
        verdict=verdict,
        measured=measured,
        threshold=bound,
        message=message,
        group="gates",
        skipped=skipped,
        file=gate.source,
        line=gate.line,
    )


def _without_baseline(gate: Gate, defaults: Defaults, reason: str = NO_BASELINE) -> Judged:
    verdict = Verdict.ERROR if defaults.on_missing == "error" else Verdict.UNDECIDED
    check = check_of(gate, verdict, "", reason, skipped=reason if defaults.on_missing == "skip" else "")
    limit = finite(gate.threshold) if gate.margin is None else None
    return Judged(gate, check, {"measured": None, "threshold": limit, "lower": None, "upper": None})


def _against_itself(gate: Gate, defaults: Defaults) -> Judged:
    return _without_baseline(gate, replace(defaults, on_missing="skip"), ITSELF)


def _absolute(gate: Gate, measurement: Measurement | None) -> Judged:
    if measurement is None or math.isnan(measurement.value):
        reason = measurement.reason if measurement else "it was not measured"
        verdict, measured, message = Verdict.UNDECIDED, "", f"{gate.metric} cannot be measured: {reason}"
    else:
        value = measurement.value
        met = value >= gate.threshold if gate.limit == "min" else value <= gate.threshold
        verdict = Verdict.PASS if met else Verdict.FAIL
        measured, message = shown(value, measurement.lower, measurement.upper), ""
    check = check_of(gate, verdict, measured, message)
    numbers = {
        "measured": finite(measurement.value if measurement else math.nan),
        "threshold": gate.threshold,
        "lower": finite(measurement.lower if measurement else math.nan),
        "upper": finite(measurement.upper if measurement else math.nan),
    }
    return Judged(gate, check, numbers)


def _by_ratio(gate: Gate, ratio: Ratio | None, comparison: Comparison | None, defaults: Defaults) -> Judged:
    if ratio is None:
        identical = comparison is not None and comparison.identical
        return _against_itself(gate, defaults) if identical else _without_baseline(gate, defaults)
    verdict, message = Verdict.UNDECIDED, ratio.reason
    if math.isfinite(ratio.value):
        exact = math.isnan(ratio.lower)
        lower, upper = (ratio.value, ratio.value) if exact else (ratio.lower, ratio.upper)
        verdict = (
            Verdict.PASS
            if upper <= gate.threshold
            else Verdict.FAIL
            if lower > gate.threshold
            else by_default(defaults)
        )
        if verdict is not Verdict.PASS and lower <= gate.threshold:
            message = f"{ratio.samples:,} measurements cannot tell it from the limit"
    check = check_of(gate, verdict, _shown_ratio(ratio), message)
    numbers = {
        "measured": finite(ratio.value),
        "threshold": gate.threshold,
        "candidate": finite(ratio.candidate),
        "baseline": finite(ratio.baseline),
        "lower": finite(ratio.lower),
        "upper": finite(ratio.upper),
    }
    return Judged(gate, check, numbers)


def _shown_ratio(ratio: Ratio) -> str:
    if not math.isfinite(ratio.value):
        return ""
    interval = "" if math.isnan(ratio.lower) else f" [{ratio.lower:.3f}, {ratio.upper:.3f}]"
    return f"{ratio.value:.3f} x{interval}"


def by_default(defaults: Defaults) -> Verdict:
    """What an open question counts as."""
    told = {"fail": Verdict.FAIL, "error": Verdict.ERROR}
    return told.get(defaults.on_inconclusive, Verdict.UNDECIDED)


def _paired(gate: Gate, comparison: Comparison | None, defaults: Defaults) -> Judged:
    if comparison is None:
        raise ValueError("a paired gate without a comparison")
    outcome = outcome_of(gate, comparison)
    verdict, message = outcome.verdict, outcome.message
    if verdict is Verdict.UNDECIDED and not message:
        message, verdict = too_few(outcome, comparison.rows), by_default(defaults)
    return paired_answer(gate, comparison, outcome, verdict, message)


def paired_answer(
    gate: Gate, comparison: Comparison, outcome: Outcome, verdict: Verdict, message: str
) -> Judged:
    """The answer to a drop, a rise or superiority, with the numbers behind it."""
    difference = comparison.differences[gate.metric]
    check = Check(gate.metric, verdict, _shown_gain(difference.metric, outcome), gate.bound, message, "gates")
    numbers = {
        "measured": finite(difference.value),
        "threshold": finite(-difference.metric.sign * outcome.margin + 0.0),
        "candidate": finite(difference.candidate),
        "baseline": finite(difference.baseline),
        "gain": finite(outcome.gain),
        "lower": finite(outcome.lower),
        "upper": finite(outcome.upper),
        "rows_needed": outcome.rows_needed or None,
    }
    return Judged(gate, check, numbers)


def too_few(outcome: Outcome, rows: int) -> str:
    """Why a comparison is open."""
    if outcome.rows_needed:
        return f"{rows:,} rows are too few to tell; about {outcome.rows_needed:,} would probably decide"
    return f"{rows:,} rows cannot tell, since the difference lies at the limit itself"


def _shown_gain(metric: Metric, outcome: Outcome) -> str:
    if math.isnan(outcome.gain):
        return ""
    # Shown in the metric's own direction, so that a rising loss reads as a rise.
    ends = sorted((metric.sign * outcome.lower, metric.sign * outcome.upper))
    if metric.unit == "share":
        text, low, high = (f"{100 * value:+.2f}" for value in (metric.sign * outcome.gain, *ends))
        text += " pp"
    else:
        text, low, high = (signed(value) for value in (metric.sign * outcome.gain, *ends))
    return text if math.isnan(outcome.lower) else f"{text} [{low}, {high}]"


def shown(value: float, lower: float = math.nan, upper: float = math.nan) -> str:
    """A number with its interval, for people."""
    text = number(value)
    return text if math.isnan(lower) else f"{text} [{number(lower)}, {number(upper)}]"


def number(value: float) -> str:
    """A number as tables show it: four decimals, fewer of a large one, significant digits of a small one."""
    if math.isnan(value):
        return "not measured"
    if value == 0 or 0.001 <= abs(value) < 1e12:
        return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return f"{value:.4g}"


def signed(value: float) -> str:
    """A difference as tables show it."""
    return number(value) if math.isnan(value) else ("-" if value < 0 else "+") + number(abs(value))


def finite(value: float) -> float | None:
    """A number for JSON, which has none for NaN and infinity."""
    return float(value) if math.isfinite(value) else None
