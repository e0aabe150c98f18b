"""The page and the document of an evaluation."""

import shlex
from collections.abc import Iterable
from typing import Any

import numpy as np

from mlx_platform.core.report import Bars, Fact, Matrix, Report, Result, Section, Series, Table
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.compare import Difference
from mlx_platform.evaluation.judge import number, signed
from mlx_platform.evaluation.metrics import confusion
from mlx_platform.evaluation.scored import Classified, Predicted
from mlx_platform.workflows.evaluation.baseline import PRODUCTION
from mlx_platform.workflows.evaluation.findings import (
    Findings,
    comparison_document,
    headline,
    measurement_document,
)

_CLASSES_DRAWN = 20
_ERRORS_SHOWN = 20


def result_of(findings: Findings, evidence: str | None) -> Result:
    """What the command returns; `evidence` is the id under which it was kept."""
    report = Report(
        title=f"Evaluation of {findings.subject.ref}",
        summary=headline(findings),
        facts=tuple(_facts(findings)),
        sections=(_metrics(findings),),
        checks=findings.checks,
        details=tuple(_details(findings)),
        next_steps=tuple(_next_steps(findings)),
    )
    return Result("eval", _data(findings, evidence), report, findings.verdict, findings.warnings)


def _data(findings: Findings, evidence: str | None) -> dict[str, Any]:
    subject, dataset = findings.subject, findings.rows.dataset
    return {
        "subject": subject.document(),
        "dataset": {
            "path": str(dataset.path),
            "rows": dataset.rows,
            "label": findings.rows.label,
            "fingerprint": dataset.fingerprint,
        },
        "task": subject.package.spec.task,
        "confidence": findings.asked.defaults.confidence,
        "seed": findings.asked.defaults.seed,
        "metrics": {name: measurement_document(one) for name, one in findings.measurements.items()},
        "gates": [one.document() for one in findings.judged],
        "comparison": comparison_document(findings),
        "evidence": evidence,
    }


def _facts(findings: Findings) -> Iterable[Fact]:
    subject, dataset = findings.subject, findings.rows.dataset
    yield Fact("version", f"{subject.ref}, digest {subject.package.digest[:12]}")
    yield Fact("data", f"{dataset.path}, {plural(dataset.rows, 'row')}, truth in {findings.rows.label!r}")
    baseline, comparison = findings.baseline, findings.comparison
    if baseline is None or comparison is None:
        yield Fact("baseline", "none")
    elif comparison.identical:
        yield Fact("baseline", f"{baseline.ref}, the same package")
    else:
        yield Fact("baseline", f"{baseline.ref}, digest {baseline.digest[:12]}")
    if comparison and comparison.flips:
        flips = comparison.flips
        p_value = f"McNemar p = {flips.p_value:.3g}"
        yield Fact("answers", f"{flips.agreement:.1%} agree; {flips.won} won, {flips.lost} lost ({p_value})")
    source = findings.asked.source or (
        "not worse than the baseline" if findings.default_gates else "command line"
    )
    yield Fact("gates", source if findings.judged else "none")


def _metrics(findings: Findings) -> Table:
    level = f"{findings.asked.defaults.confidence:.0%} interval"
    columns: tuple[str, ...] = ("metric", "value", level)
    if findings.comparison:
        columns = (*columns, "baseline", "difference")
    rows = []
    for name, one in findings.measurements.items():
        interval = "" if np.isnan(one.lower) else f"{number(one.lower)} to {number(one.upper)}"
        cells = [name, number(one.value), interval or one.reason]
        if findings.comparison:
            cells += _compared(findings.comparison.differences.get(name))
        rows.append(tuple(cells))
    return Table("Metrics", columns, tuple(rows), numeric=(1, 3, 4))


def _compared(difference: Difference | None) -> list[str]:
    if difference is None:
        return ["", ""]
    if np.isnan(difference.value):
        return [number(difference.baseline), ""]
    text = signed(difference.value)
    if not np.isnan(difference.lower):
        text += f" [{signed(difference.lower)}, {signed(difference.upper)}]"
    return [number(difference.baseline), text]


def _details(findings: Findings) -> Iterable[Section]:
    scored = findings.scored
    if isinstance(scored, Predicted):
        yield _worst_numbers(findings, scored)
    if not isinstance(scored, Classified):
        return
    if scored.classes <= _CLASSES_DRAWN:
        counts = confusion(scored)
        values = tuple(tuple(int(cell) for cell in row) for row in counts)
        yield Matrix("Confusion (rows: truth, columns: answer)", findings.labels, findings.labels, values)
        yield _recall_bars(findings, scored)
    yield _class_table(findings, scored)
    yield _worst_labels(findings, scored)


def _recall(scored: Classified) -> Array:
    """The share of right answers of each class; NaN for one without rows."""
    counts = confusion(scored)
    rows = counts.sum(axis=1)
    recall = np.full(len(rows), np.nan)
    np.divide(counts.diagonal(), rows, out=recall, where=rows > 0)
    return recall


def _recall_bars(findings: Findings, scored: Classified) -> Bars:
    sides = [(findings.subject.ref, scored)]
    if findings.baseline and isinstance(findings.baseline.scored, Classified):
        sides.append((findings.baseline.ref, findings.baseline.scored))
    met = np.flatnonzero(np.isfinite(_recall(scored)))  # both sides have the same truth
    series = tuple(Series(ref, tuple(_recall(side)[met].tolist())) for ref, side in sides)
    return Bars("Recall by class", tuple(findings.labels[code] for code in met), series, unit="share")


def _class_table(findings: Findings, scored: Classified) -> Table:
    counts = confusion(scored)
    true, answered, hits = counts.sum(axis=1), counts.sum(axis=0), counts.diagonal()
    recall = _recall(scored)
    order = sorted(
        np.flatnonzero(true + answered), key=lambda code: (np.nan_to_num(recall[code], nan=-1.0), code)
    )
    rows = tuple(
        (
            findings.labels[code],
            f"{true[code]:,}",
            f"{answered[code]:,}",
            number(hits[code] / answered[code]) if answered[code] else "",
            number(float(recall[code])) if true[code] else "",
        )
        for code in order[:_CLASSES_DRAWN]
    )
    title = "Classes, lowest recall first"
    return Table(title, ("class", "rows", "answered", "precision", "recall"), rows, numeric=(1, 2, 3, 4))


def _worst_labels(findings: Findings, scored: Classified) -> Table:
    wrong = np.flatnonzero(scored.truth != scored.answer)
    columns: tuple[str, ...] = ("row", "truth", "answer")
    confidence = None
    if scored.probabilities is not None:
        confidence = scored.probabilities[np.arange(scored.rows), scored.answer]
        wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
        columns = (*columns, "confidence")
    rows = []
    for row in wrong[:_ERRORS_SHOWN]:
        cells = [
            str(findings.rows.ids[row]),
            findings.labels[scored.truth[row]],
            findings.labels[scored.answer[row]],
        ]
        rows.append(tuple(cells if confidence is None else [*cells, number(float(confidence[row]))]))
    title = f"Surest errors ({plural(len(wrong), 'error')} in all)"
    return Table(title, columns, tuple(rows), numeric=(3,))


def _worst_numbers(findings: Findings, scored: Predicted) -> Table:
    error = scored.answer - scored.truth
    order = np.argsort(-np.abs(error), kind="stable")[:_ERRORS_SHOWN]
    rows = tuple(
        (
            str(findings.rows.ids[row]),
            number(float(scored.truth[row])),
            number(float(scored.answer[row])),
            signed(float(error[row])),
        )
        for row in order
    )
    return Table("Largest errors", ("row", "truth", "answer", "error"), rows, numeric=(1, 2, 3))


def _next_steps(findings: Findings) -> Iterable[str]:
    subject, dataset = findings.subject, findings.rows.dataset
    again = f"mlx eval {shlex.quote(subject.ref)} --data {shlex.quote(str(dataset.path))}"
    if not any(not check.skipped for check in findings.checks):
        metric = next(iter(findings.measurements))
        example = f"{metric}>=0.9" if metric == "accuracy" else f"{metric}<=1.5"
        yield f'{again} --gate "{example}"'
    elif subject.version is None:
        yield f"mlx register NAME {shlex.quote(subject.source)}"
    elif not subject.sealed:
        yield f"mlx adopt {subject.version.ref}"
    elif findings.verdict is Verdict.PASS and PRODUCTION not in subject.version.aliases:
        yield f"mlx promote {subject.version.ref} --to {PRODUCTION}"
