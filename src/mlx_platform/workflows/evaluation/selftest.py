"""`mlx eval --aa`: how often the gates fail by chance alone."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlx_platform.core.progress import Silent
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.statistics import clopper_pearson_lower, wilson
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.compare import compare
from mlx_platform.evaluation.copies import equal_copies
from mlx_platform.evaluation.gates import Gate, GateFile
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.scored import Scored
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.comparing import Baseline, Compared, Guard
from mlx_platform.workflows.evaluation.rows import Rows
from mlx_platform.workflows.evaluation.slicing import judge_all
from mlx_platform.workflows.reports.write import write_reports
from mlx_platform.workflows.subject import Subject

COPIES = 200
_NAN = float("nan")
_SURE = 0.95


def self_test(
    context: Context,
    subject: Subject,
    compared: Compared,
    rows: Rows,
    asked: GateFile,
    *,
    report: Path | None = None,
    junit: Path | None = None,
    metrics: Path | None = None,
) -> Result:
    """Judge pairs of copies that are equally good, and count how often a gate fails all the same.

    Nothing is kept with the version: the gates were asked about copies, not about the model.

    Args:
        context: the command's context.
        subject: the model.
        compared: its answers, and those of the baseline.
        rows: what belongs to each row.
        asked: the gates.
        report: a folder for the report.
        junit: a file for the JUnit XML.
        metrics: a file for the numbers as OpenMetrics text.
    """
    baseline = compared.baseline
    other = None
    if baseline is not None and baseline.digest != subject.package.digest:
        other = baseline.scored
    columns = rows.slices or {}
    gates = tuple(gate for gate in asked.gates if gate.metric in compared.metrics or gate.needs_baseline)
    gates = tuple(gate for gate in gates if gate.limit != "max_ratio")
    asked = GateFile(gates, asked.defaults)
    verdicts: list[Counter[Verdict]] = [Counter() for _ in gates]
    together: Counter[Verdict] = Counter()
    quiet = Context(context.settings, context.catalog, context.clock, Silent(), context.actor)
    pairs = equal_copies(compared.scored, other, count=COPIES, seed=asked.defaults.seed)
    with context.progress.stage("judging copies", COPIES) as advance:
        for drawn, first, second in pairs if gates else ():
            taken = {name: column[drawn] for name, column in columns.items()}
            judged, _slices = judge_all(quiet, _copied(compared, asked, first, second), taken, asked)
            for counter, one in zip(verdicts, judged, strict=True):
                counter[one.check.verdict] += 1
            tested = (one.check for one in judged if _has_level(one.gate))
            together[verdict_of(tested)] += 1
            advance(1)
    result = _result(subject, compared, rows, asked, verdicts, together, other=other is not None)
    return write_reports(result, report=report, junit=junit, metrics=metrics)


def _copied(compared: Compared, asked: GateFile, first: Scored, second: Scored) -> Compared:
    """What the gates are answered by when one copy is judged against the other; no intervals of values."""
    gated = {gate.metric for gate in asked.gates}
    metrics = {name: metric for name, metric in compared.metrics.items() if name in gated} or dict(
        list(compared.metrics.items())[:1]
    )
    values = {
        name: Measurement(name, metric.of(first), _NAN, _NAN, first.rows, reason=metric.obstacle(first))
        for name, metric in metrics.items()
    }
    comparison = compare(
        first,
        second,
        metrics=list(metrics.values()),
        confidence=asked.defaults.confidence,
        seed=asked.defaults.seed,
    )
    baseline = Baseline("copy", "", second, {})
    guards = tuple(Guard(name, "copy", "", second, comparison) for name in asked.guards)
    return Compared(first, compared.labels, metrics, values, baseline, comparison, guards)


def _result(
    subject: Subject,
    compared: Compared,
    rows: Rows,
    asked: GateFile,
    verdicts: list[Counter[Verdict]],
    together: Counter[Verdict],
    *,
    other: bool,
) -> Result:
    level = 1 - asked.defaults.confidence
    checks = tuple(_check(gate, counts, level) for gate, counts in zip(asked.gates, verdicts, strict=True))
    verdict = verdict_of(checks)
    failing = together[Verdict.FAIL] / COPIES
    how = (
        f"its answers and those of {compared.baseline.ref} in random exchange"
        if other and compared.baseline
        else "its answers to other rows with the same truth"
    )
    tested = any(_has_level(gate) for gate in asked.gates)
    summary = (
        f"{subject.ref} against {COPIES} equally good copies: {failing:.1%} fail a test by chance."
        if tested
        else f"{subject.ref}: there are no drops, rises or gains to test, only limits or no gates at all."
    )
    page = Report(
        title=f"A/A test of the gates with {subject.ref}",
        summary=summary,
        facts=(
            Fact("data", f"{rows.dataset.path}, {plural(rows.dataset.rows, 'row')}, drawn with repetition"),
            Fact("copies", how),
            Fact("level", f"{level:.1%} of the tests may fail where nothing is worse"),
        ),
        sections=(_table(asked.gates, verdicts),) if asked.gates else (),
        checks=checks,
    )
    data = {
        "subject": subject.document(),
        "dataset": {
            "path": str(rows.dataset.path),
            "rows": rows.dataset.rows,
            "label": rows.label,
            "fingerprint": rows.dataset.fingerprint,
        },
        "aa": {
            "copies": COPIES,
            "level": level,
            "seed": asked.defaults.seed,
            "exchanged_with": compared.baseline.ref if other and compared.baseline else None,
            "false_fail_rate": failing if tested else None,
            "gates": [
                _document(gate, counts, level) for gate, counts in zip(asked.gates, verdicts, strict=True)
            ],
        },
        "evidence": None,
    }
    return Result("eval", data, page, verdict)


def _document(gate: Gate, counts: Counter[Verdict], level: float) -> dict[str, Any]:
    failed = counts[Verdict.FAIL]
    interval = wilson(failed, COPIES)
    return {
        "name": gate.name,
        "metric": gate.metric,
        "fail": failed / COPIES,
        "fail_lower": interval.lower,
        "fail_upper": interval.upper,
        "undecided": (counts[Verdict.UNDECIDED] + counts[Verdict.ERROR]) / COPIES,
        "pass": counts[Verdict.PASS] / COPIES,
        "level": level if _has_level(gate) else None,
    }


def _has_level(gate: Gate) -> bool:
    """Whether the gate is a test: a limit takes the value as it is."""
    return gate.limit not in ("min", "max")


def _check(gate: Gate, counts: Counter[Verdict], level: float) -> Check:
    """Whether a gate is shown to fail, or to see a gain, more often than it may."""
    failed, passed = counts[Verdict.FAIL], counts[Verdict.PASS]
    interval = wilson(failed, COPIES)
    measured = f"{failed / COPIES:.1%} fail [{interval.lower:.1%}, {interval.upper:.1%}]"
    if not _has_level(gate):
        skipped = "a limit takes the value as it is, so there is no level to keep"
        return _told(gate, Verdict.UNDECIDED, measured, skipped=skipped)
    often = clopper_pearson_lower(failed, COPIES, _SURE) > level
    lucky = gate.limit == "superiority" and clopper_pearson_lower(passed, COPIES, _SURE) > level
    if lucky:
        measured = f"{passed / COPIES:.1%} see a gain"
    message = "more often than the level of the test" if often or lucky else ""
    return _told(gate, Verdict.FAIL if often or lucky else Verdict.PASS, measured, message, level=level)


def _told(
    gate: Gate, verdict: Verdict, measured: str, message: str = "", *, skipped: str = "", level: float = 0.0
) -> Check:
    return Check(
        name=gate.name,
        verdict=verdict,
        measured=measured,
        threshold="" if skipped else f"<= {level:.1%}",
        message=message,
        group="aa",
        skipped=skipped,
        file=gate.source,
        line=gate.line,
    )


def _table(gates: Iterable[Gate], verdicts: Iterable[Counter[Verdict]]) -> Table:
    rows = tuple(
        (
            gate.name,
            f"{counts[Verdict.FAIL] / COPIES:.1%}",
            f"{(counts[Verdict.UNDECIDED] + counts[Verdict.ERROR]) / COPIES:.1%}",
            f"{counts[Verdict.PASS] / COPIES:.1%}",
        )
        for gate, counts in zip(gates, verdicts, strict=True)
    )
    return Table(
        f"Verdicts on {COPIES} copies that are equally good",
        ("gate", "fail", "undecided", "pass"),
        rows,
        numeric=(1, 2, 3),
    )
