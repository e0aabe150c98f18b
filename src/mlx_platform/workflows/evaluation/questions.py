"""The gates of an evaluation as checks: one for each gate and for each of its slices, with their numbers."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlx_platform.core.report import Gauge
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.judge import Judged
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.workflows.evaluation.findings import Findings

_OF = re.compile(r"(.+)\[(.+)\]", re.DOTALL)


def checks_of(findings: Findings) -> tuple[Check, ...]:
    """Every gate, followed by what it says of each slice; the other checks come last."""
    group = f"gates.{_word(findings.rows.dataset.path)}"
    answered = {id(judged.check) for judged in findings.judged}
    found = []
    for judged in findings.judged:
        found.append(_check(judged, group))
        found += [_check(one, group) for one in slices_of(findings, judged)]
    others = (check for check in findings.checks if id(check) not in answered)
    return (*found, *(replace(check, group=group) for check in others))


def slices_of(findings: Findings, judged: Judged) -> tuple[Judged, ...]:
    """A gate's answers about its slices."""
    if judged.gate.slices is None:
        return ()
    return tuple(one for part in findings.slices for one in part.judged if one.gate == judged.gate)


def open_questions(findings: Findings) -> tuple[tuple[Check, int], ...]:
    """Checks that were left open, each with the rows that would probably decide it."""
    every = (one for judged in findings.judged for one in (judged, *slices_of(findings, judged)))
    return tuple(
        (one.check, int(one.numbers["rows_needed"]))
        for one in every
        if one.gate.slices is None or one.check.part
        if one.check.verdict is not Verdict.PASS and one.numbers.get("rows_needed")
    )


def gauges_of(findings: Findings) -> tuple[Gauge, ...]:
    """The numbers that a pipeline follows from one evaluation to the next."""
    passed = Gauge("eval_passed", float(findings.verdict is Verdict.PASS))
    rows = Gauge("eval_rows", float(findings.rows.dataset.rows))
    values = (_gauge(one) for one in findings.measurements.values())
    parts = (
        _gauge(one, ("slice", part.name)) for part in findings.slices for one in part.measurements.values()
    )
    return (passed, rows, *values, *parts)


def _gauge(one: Measurement, *labels: tuple[str, str]) -> Gauge:
    """`recall[spam]` is the recall of a class, and its samples differ by the class."""
    match = _OF.fullmatch(one.name)
    if match:
        return Gauge(match[1], one.value, (("of", match[2]), *labels))
    return Gauge(one.name, one.value, labels)


def _check(judged: Judged, group: str) -> Check:
    check, gate = judged.check, judged.gate
    values = (("metric", gate.metric), *_flat(judged.numbers.items()))
    return replace(check, group=group, values=values, file=gate.source, line=gate.line)


def _flat(numbers: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, str]]:
    for name, value in numbers:
        if isinstance(value, dict):
            yield from _flat((f"{name}.{key}", inner) for key, inner in value.items())
        elif isinstance(value, list):
            yield name, ", ".join(map(str, value))
        elif value is not None:
            yield name, str(value)


def _word(path: Path) -> str:
    """The data's name as one word: viewers make packages of dots."""
    return path.name.replace(".", "_") or "data"
