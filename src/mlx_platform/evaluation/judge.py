"""Answers to gates: measurements and a comparison in, a check for each gate out."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlx_platform.core.statistics import wilson
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.compare import Comparison, Margin, Outcome, better, no_worse
from mlx_platform.evaluation.gates import Defaults, Gate
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.metrics import METRICS

WARN_ONLY = "level = warn: it never decides"
NO_BASELINE = "there is no baseline to compare with"
ITSELF = "the baseline is this very package: there is nothing to compare"


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
            "verdict": str(self.check.verdict),
            "shown": self.check.measured,
            "message": self.check.message,
            "skipped": self.check.skipped,
            **self.numbers,
        }


def judge(
    gates: Iterable[Gate],
    measurements: Mapping[str, Measurement],
    comparison: Comparison | None = None,
    defaults: Defaults | None = None,
) -> tuple[Judged, ...]:
    """Answer every gate.

    Limits (`min`, `max`) compare the value itself; drops and superiority use the paired test. What cannot be
    measured or compared is undecided or an error, never a pass.

    Args:
        gates: the questions, for metrics that were measured.
        measurements: of the candidate, by metric.
        comparison: with the baseline; None when there is none.
        defaults: what becomes of open questions.
    """
    defaults = defaults or Defaults()
    known = {**measurements, **pair_measurements(comparison)}
    return tuple(_judge(gate, known, comparison, defaults) for gate in gates)


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


def _judge(
    gate: Gate, measurements: Mapping[str, Measurement], comparison: Comparison | None, defaults: Defaults
) -> Judged:
    if gate.needs_baseline and comparison is None:
        judged = _without_baseline(gate, defaults)
    elif gate.limit in ("min", "max"):
        judged = _absolute(gate, measurements.get(gate.metric))
    else:
        judged = _paired(gate, comparison, defaults)
    if gate.warn:
        missed = "" if judged.check.verdict is Verdict.PASS else f"{judged.check.verdict}, but "
        return replace(
            judged, check=replace(judged.check, skipped=judged.check.skipped or missed + WARN_ONLY)
        )
    return judged


def _without_baseline(gate: Gate, defaults: Defaults, reason: str = NO_BASELINE) -> Judged:
    verdict = Verdict.ERROR if defaults.on_missing == "error" else Verdict.UNDECIDED
    check = Check(
        name=gate.metric,
        verdict=verdict,
        measured="",
        threshold=gate.bound,
        message=reason,
        group="gates",
        skipped=reason if defaults.on_missing == "skip" else "",
    )
    limit = finite(gate.threshold) if gate.limit in ("min", "max") else None
    return Judged(gate, check, {"measured": None, "threshold": limit, "lower": None, "upper": None})


def _absolute(gate: Gate, measurement: Measurement | None) -> Judged:
    if measurement is None or math.isnan(measurement.value):
        reason = measurement.reason if measurement else "it was not measured"
        verdict, measured, message = Verdict.UNDECIDED, "", f"{gate.metric} cannot be measured: {reason}"
    else:
        value = measurement.value
        met = value >= gate.threshold if gate.limit == "min" else value <= gate.threshold
        verdict = Verdict.PASS if met else Verdict.FAIL
        measured, message = shown(value, measurement.lower, measurement.upper), ""
    check = Check(gate.metric, verdict, measured, gate.bound, message, "gates")
    numbers = {
        "measured": finite(measurement.value if measurement else math.nan),
        "threshold": gate.threshold,
        "lower": finite(measurement.lower if measurement else math.nan),
        "upper": finite(measurement.upper if measurement else math.nan),
    }
    return Judged(gate, check, numbers)


def _paired(gate: Gate, comparison: Comparison | None, defaults: Defaults) -> Judged:
    if comparison is None:
        raise ValueError("a paired gate without a comparison")
    if comparison.identical:
        return _without_baseline(gate, replace(defaults, on_missing="skip"), ITSELF)
    difference = comparison.differences[gate.metric]
    margin = gate.margin or Margin(0.0)
    superiority = gate.limit == "superiority"
    outcome = better(comparison, gate.metric) if superiority else no_worse(comparison, gate.metric, margin)
    verdict, message = outcome.verdict, outcome.message
    if verdict is Verdict.UNDECIDED and not message:
        message = _too_few(outcome, comparison.rows)
        verdict = {"fail": Verdict.FAIL, "error": Verdict.ERROR}.get(defaults.on_inconclusive, verdict)
    check = Check(gate.metric, verdict, _shown_gain(gate, outcome), gate.bound, message, "gates")
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


def _too_few(outcome: Outcome, rows: int) -> str:
    if outcome.rows_needed:
        return f"{rows:,} rows are too few to tell; about {outcome.rows_needed:,} would probably decide"
    return f"{rows:,} rows cannot tell, since the difference lies at the limit itself"


def _shown_gain(gate: Gate, outcome: Outcome) -> str:
    if math.isnan(outcome.gain):
        return ""
    # Shown in the metric's own direction, so that a rising loss reads as a rise.
    sign = METRICS[gate.metric].sign
    ends = sorted((sign * outcome.lower, sign * outcome.upper))
    if METRICS[gate.metric].unit == "share":
        text, low, high = (f"{100 * value:+.2f}" for value in (sign * outcome.gain, *ends))
        text += " pp"
    else:
        text, low, high = (signed(value) for value in (sign * outcome.gain, *ends))
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
