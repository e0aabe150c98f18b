"""Metrics, gates and slices of an evaluation drawn with their intervals."""

import math
from collections.abc import Iterable, Sequence

from mlx_platform.core.report import Section, Span, Spans, Table
from mlx_platform.core.text import listed, plural
from mlx_platform.core.verdict import Verdict, worst
from mlx_platform.evaluation.compare import Difference
from mlx_platform.evaluation.gates import Gate
from mlx_platform.evaluation.judge import WARN_ONLY, Judged, number, shown, signed
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.metrics import METRICS
from mlx_platform.evaluation.slices import SliceResult
from mlx_platform.workflows.evaluation.findings import Findings
from mlx_platform.workflows.evaluation.questions import open_questions, slices_of

_DRAWN = 100
_BRIEF = 5
_NAMED = 20
_NAN = math.nan
_SEVERITY = (Verdict.FAIL, Verdict.ERROR, Verdict.UNDECIDED, Verdict.PASS)


def metrics_table(findings: Findings) -> Table:
    """The metrics with their intervals, beside the baseline's where there is one."""
    level = f"{findings.asked.defaults.confidence:.0%} interval"
    columns: tuple[str, ...] = ("metric", "value", level)
    if findings.comparison:
        columns = (*columns, "baseline", "difference")
    rows = []
    for name, one in findings.measurements.items():
        interval = "" if math.isnan(one.lower) else f"{number(one.lower)} to {number(one.upper)}"
        cells = [name, number(one.value), interval or one.reason]
        if findings.comparison:
            cells += _compared(findings, name)
        rows.append(tuple(cells))
    return Table("Metrics", columns, tuple(rows), numeric=(1, 3, 4))


def _compared(findings: Findings, name: str) -> list[str]:
    old = _baseline_value(findings, name)
    difference = findings.comparison.differences.get(name) if findings.comparison else None
    return ["" if math.isnan(old) else number(old), _difference(difference) if difference else ""]


def _difference(difference: Difference) -> str:
    if math.isnan(difference.value):
        return ""
    text = signed(difference.value)
    if math.isnan(difference.lower):
        return text
    return f"{text} [{signed(difference.lower)}, {signed(difference.upper)}]"


def _baseline_value(findings: Findings, name: str) -> float:
    difference = findings.comparison.differences.get(name) if findings.comparison else None
    if difference is not None:
        return difference.baseline
    known = findings.baseline.measurements.get(name) if findings.baseline else None
    return known.value if known else _NAN


def metrics_drawn(findings: Findings) -> Spans:
    """Every metric on a scale of its own, with the baseline and the limit of a gate."""
    spans = tuple(_metric(findings, one) for one in findings.measurements.values())
    level = f"{findings.asked.defaults.confidence:.0%}"
    note = f"Each line has a scale of its own. Intervals are two-sided, {level}."
    return Spans("Metrics", spans, note=note)


def _metric(findings: Findings, one: Measurement) -> Span:
    judged = [each for each in findings.judged if each.gate.metric == one.name and each.gate.slices is None]
    limits = [each.gate for each in judged if each.gate.limit in ("min", "max")]
    comparison, old = findings.comparison, _baseline_value(findings, one.name)
    notes = [one.reason] if one.reason else []
    if not math.isnan(old) and not (comparison and comparison.identical):
        difference = comparison.differences.get(one.name) if comparison else None
        notes.append(f"baseline {number(old)}")
        if difference and _difference(difference):
            notes.append(f"difference {_difference(difference)}")
    notes += [gate.bound for gate in limits]
    return Span(
        name=f"{one.name} ({one.unit})" if one.unit not in ("", "share") else one.name,
        value=one.value,
        lower=one.lower,
        upper=one.upper,
        baseline=old,
        threshold=_tightest(limits),
        text="" if math.isnan(one.value) else shown(one.value, one.lower, one.upper),
        note=", ".join(notes),
        verdict=worst(each.check.verdict for each in judged) if judged else None,
    )


def _tightest(gates: Sequence[Gate]) -> float:
    """The limit that is hardest to keep; NaN without any."""
    lowest = [gate.threshold for gate in gates if gate.limit == "min"]
    highest = [gate.threshold for gate in gates if gate.limit == "max"]
    return max(lowest) if lowest else min(highest) if highest else _NAN


def losses_drawn(findings: Findings) -> Spans | None:
    """Gates on a difference or a ratio: the bounds that decide, and what is allowed; None without such."""
    judged = [
        one
        for one in findings.judged
        if one.gate.limit not in ("min", "max") and one.gate.slices is None
        if one.numbers.get("measured") is not None
    ]
    if not judged:
        return None
    level = findings.asked.defaults.confidence
    note = (
        "A difference passes when its whole interval lies on the good side of the threshold, and fails when "
        f"all of it lies beyond. The ends are one-sided bounds at {level:.0%} each; 0 is no difference."
    )
    return Spans("Change against the baseline", tuple(map(_loss, judged)), note=note)


def _loss(judged: Judged) -> Span:
    lower, upper = _ends(judged)
    ratio = judged.gate.limit == "max_ratio"
    return Span(
        name=judged.gate.name,
        value=_float(judged.numbers["measured"]),
        lower=lower,
        upper=upper,
        baseline=1.0 if ratio else 0.0,
        threshold=_float(judged.numbers.get("threshold")),
        text=judged.check.measured,
        note=judged.check.skipped or judged.check.message,
        verdict=judged.check.verdict,
    )


def _ends(judged: Judged) -> tuple[float, float]:
    """The bounds in the direction of the metric, as `measured` and `threshold` are; a gain has its own."""
    lower, upper = (_float(judged.numbers.get(key)) for key in ("lower", "upper"))
    gain, measured = judged.numbers.get("gain"), judged.numbers["measured"]
    falls = gain is not None and measured is not None and float(gain) * float(measured) < 0
    if gain == 0 and judged.gate.metric in METRICS:
        falls = METRICS[judged.gate.metric].sign < 0
    return (-upper, -lower) if falls else (lower, upper)


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else _NAN


def slices_drawn(findings: Findings) -> Iterable[Spans]:
    """For each gate about slices, and for those that are only shown: all on one scale, worst first."""
    for judged in findings.judged:
        if judged.gate.slices is not None:
            yield _gate_slices(findings, judged)
    shown_only = [part for part in findings.slices if not part.judged]
    if shown_only:
        metric = next(iter(findings.measurements))
        yield _plain_slices(findings, metric, shown_only)


def _gate_slices(findings: Findings, judged: Judged) -> Spans:
    each = slices_of(findings, judged)
    parts = {part.name: part for part in findings.slices}
    order = sorted((one for one in each if not _left_out(one)), key=_badness)
    spans = tuple(_slice(one, parts.get(one.check.part)) for one in order[:_DRAWN])
    words = ["Worst first, on one scale."]
    if judged.gate.limit not in ("min", "max"):
        words.append("Drawn is the difference from the baseline; 0 is none.")
    small = [parts[one.check.part] for one in each if _left_out(one) and one.check.part in parts]
    return Spans(
        f"Slices: {judged.gate.name}",
        spans,
        shared=True,
        note=" ".join((*words, *_beyond(len(order)), *_too_small(small))),
    )


def _left_out(one: Judged) -> bool:
    return bool(one.check.skipped) and not one.check.skipped.endswith(WARN_ONLY)


def _beyond(count: int) -> list[str]:
    return [f"{count - _DRAWN:,} more are in the JSON document."] if count > _DRAWN else []


def _too_small(parts: Sequence[SliceResult]) -> list[str]:
    """Slices that were left out, in a sentence."""
    if not parts:
        return []
    names = listed([f"{part.name} ({part.rows:,})" for part in parts], _NAMED)
    return [f"{plural(len(parts), 'slice')} with too few rows: {names}."]


def _slice(one: Judged, part: SliceResult | None) -> Span:
    paired = one.gate.limit not in ("min", "max")
    lower, upper = _ends(one) if one.numbers.get("measured") is not None else (_NAN, _NAN)
    rows = plural(int(one.numbers.get("rows") or 0), "row")
    reason = one.check.message
    baseline = 0.0 if paired else _slice_baseline(part, one.gate.metric)
    return Span(
        name=one.check.part,
        value=_float(one.numbers.get("measured")),
        lower=lower,
        upper=upper,
        baseline=baseline if one.numbers.get("measured") is not None else _NAN,
        threshold=_float(one.numbers.get("threshold")),
        text=one.check.measured,
        note=rows if not reason else reason if reason.startswith(rows) else f"{rows}; {reason}",
        verdict=one.check.verdict,
    )


def _slice_baseline(part: SliceResult | None, metric: str) -> float:
    comparison = part.comparison if part else None
    difference = comparison.differences.get(metric) if comparison else None
    return difference.baseline if difference else _NAN


def _badness(one: Judged) -> tuple[int, float]:
    """Sorts the worst slice first."""
    gain = one.numbers.get("gain")
    value = one.numbers.get("measured") if gain is None else gain
    order = math.inf if value is None else float(value)
    falls = one.gate.limit == "max" and gain is None
    return _SEVERITY.index(one.check.verdict), -order if falls else order


def _plain_slices(findings: Findings, metric: str, parts: Sequence[SliceResult]) -> Spans:
    whole = findings.measurements[metric]
    order = _worst(findings, [part for part in parts if not part.too_small])
    spans = tuple(_plain_slice(part, metric) for part in order[:_DRAWN])
    together = f"All rows together: {shown(whole.value, whole.lower, whole.upper)}."
    small = [part for part in parts if part.too_small]
    words = ("Worst first, on one scale.", together, *_beyond(len(order)), *_too_small(small))
    return Spans(f"Slices: {metric}", spans, shared=True, note=" ".join(words))


def _worst(findings: Findings, parts: Iterable[SliceResult]) -> list[SliceResult]:
    """By the primary metric."""
    metric = next(iter(findings.measurements))
    sign = -1.0 if findings.measurements[metric].higher_is_better is False else 1.0
    return sorted(parts, key=lambda part: _value(part, metric, sign))


def _value(part: SliceResult, metric: str, sign: float) -> float:
    one = part.measurements.get(metric)
    return math.inf if one is None or math.isnan(one.value) else sign * one.value


def _plain_slice(part: SliceResult, metric: str) -> Span:
    rows, one = plural(part.rows, "row"), part.measurements.get(metric)
    if one is None or math.isnan(one.value):
        return Span(part.name, _NAN, note=f"{rows}; {one.reason if one else 'not measured'}")
    return Span(
        part.name,
        one.value,
        one.lower,
        one.upper,
        baseline=_slice_baseline(part, metric),
        text=shown(one.value, one.lower, one.upper),
        note=rows,
    )


def slices_table(findings: Findings) -> Table | None:
    """The worst slices for a terminal; None without slices. Those of gates are among the checks already."""
    metric = next(iter(findings.measurements))
    plain = [part for part in findings.slices if not part.judged]
    if not plain:
        return None
    order = _worst(findings, plain)
    rows = tuple(_cells(part, part.measurements.get(metric)) for part in order[:_BRIEF])
    of = f"the worst {len(rows)} of {len(plain):,}" if len(plain) > len(rows) else "worst first"
    return Table(f"Slices, {of}", ("slice", "rows", metric, "interval"), rows, numeric=(1, 2))


def _cells(part: SliceResult, one: Measurement | None) -> tuple[str, ...]:
    if one is None:
        return part.name, f"{part.rows:,}", "", "too few rows"
    interval = "" if math.isnan(one.lower) else f"{number(one.lower)} to {number(one.upper)}"
    return part.name, f"{part.rows:,}", number(one.value), interval or one.reason


def undecided_table(findings: Findings) -> Section | None:
    """How many rows would decide what is open; None where nothing is."""
    found = open_questions(findings)
    if not found:
        return None
    have = {part.name: part.rows for part in findings.slices}
    rows = tuple(
        (check.title, f"{have.get(check.part, findings.rows.dataset.rows):,}", f"{needed:,}")
        for check, needed in found
    )
    return Table("Rows that would probably decide", ("open", "rows now", "rows needed"), rows, numeric=(1, 2))
