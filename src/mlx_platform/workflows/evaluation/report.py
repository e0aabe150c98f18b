"""The page and the document of an evaluation."""

import shlex
from collections.abc import Iterable
from typing import Any

from mlx_platform.core.report import Drawing, Fact, Report, Result, Section, Table
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Verdict
from mlx_platform.evaluation.gates import digest_of
from mlx_platform.evaluation.judge import finite
from mlx_platform.workflows.evaluation.answers import answers_document, sections_of
from mlx_platform.workflows.evaluation.baseline import PRODUCTION
from mlx_platform.workflows.evaluation.findings import (
    Findings,
    comparison_document,
    headline,
    measurement_document,
    slice_document,
)
from mlx_platform.workflows.evaluation.intervals import (
    losses_drawn,
    metrics_drawn,
    metrics_table,
    slices_drawn,
    slices_table,
    undecided_table,
)
from mlx_platform.workflows.evaluation.questions import checks_of, gauges_of


def result_of(findings: Findings, evidence: str | None) -> Result:
    """What the command returns; `evidence` is the id under which it was kept."""
    slices = slices_table(findings)
    report = Report(
        title=f"Evaluation of {findings.subject.ref}",
        summary=headline(findings),
        facts=tuple(_facts(findings)),
        checks=checks_of(findings),
        brief=(metrics_table(findings), *((slices,) if slices else ())),
        details=tuple(_details(findings)),
        next_steps=tuple(_next_steps(findings)),
        gauges=gauges_of(findings),
    )
    return Result("eval", _data(findings, evidence), report, findings.verdict, findings.warnings)


def _data(findings: Findings, evidence: str | None) -> dict[str, Any]:
    asked = findings.asked
    return {
        "subject": findings.subject.document(),
        "dataset": _dataset(findings),
        "task": findings.scored.task,
        "confidence": asked.defaults.confidence,
        "seed": asked.defaults.seed,
        "gate_set": {
            "source": asked.source or None,
            "digest": digest_of(asked) if asked.gates else None,
            "default": findings.default_gates,
        },
        "metrics": {name: measurement_document(one) for name, one in findings.measurements.items()},
        "gates": [one.document() for one in findings.judged],
        "comparison": comparison_document(findings),
        "guards": [
            {"name": guard.name, "ref": guard.ref, "digest": guard.digest} for guard in findings.guards
        ],
        "slices": [slice_document(one) for one in findings.slices],
        "looks": findings.looks.document() if findings.looks else None,
        "latency": findings.timings.document() if findings.timings else None,
        **answers_document(findings),
        "evidence": evidence,
    }


def _dataset(findings: Findings) -> dict[str, Any]:
    rows, dataset, scored = findings.rows, findings.rows.dataset, findings.scored
    weights = rows.weights
    return {
        "path": str(dataset.path),
        "rows": dataset.rows,
        "label": rows.label,
        "fingerprint": dataset.fingerprint,
        "weight": None if weights is None else finite(float(weights.sum())),
        "effective_rows": finite(scored.effective_rows),
        "groups": None if scored.drawn_by is None else scored.units,
        "overlap": [one.document() for one in rows.overlaps],
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
    for guard in findings.guards:
        yield Fact("guard", f"{guard.name}: {guard.ref}, digest {guard.digest[:12]}")
    if comparison and comparison.flips:
        flips = comparison.flips
        p_value = f"McNemar p = {flips.p_value:.3g}"
        yield Fact("answers", f"{flips.agreement:.1%} agree; {flips.won} won, {flips.lost} lost ({p_value})")
    source = findings.asked.source or (
        "not worse than the baseline" if findings.default_gates else "command line"
    )
    yield Fact("gates", source if findings.judged else "none")
    if findings.timings:
        yield Fact("latency", findings.timings.told)
    if findings.looks and findings.looks.count > 1:
        yield Fact("looks", f"{findings.looks.count:,} at these rows through these gates, this one included")


def _details(findings: Findings) -> Iterable[Section | Drawing]:
    open_ = undecided_table(findings)
    if open_:
        yield open_
    changes = losses_drawn(findings)
    if changes:
        yield changes
    yield metrics_drawn(findings)
    yield from slices_drawn(findings)
    yield from sections_of(findings)
    yield _rules(findings)


def _rules(findings: Findings) -> Table:
    """What would be needed to get the same numbers again."""
    rows, dataset, scored, asked = findings.rows, findings.rows.dataset, findings.scored, findings.asked
    told = {
        "data": str(dataset.path),
        "SHA-256": dataset.fingerprint,
        "rows": f"{dataset.rows:,}",
        "truth": rows.label,
        "weights": ""
        if rows.weights is None
        else f"sum {float(rows.weights.sum()):,.6g}, as good as {scored.effective_rows:,.0f} equal rows",
        "groups": "" if scored.drawn_by is None else f"{scored.units:,}, drawn as wholes",
        "slices": ", ".join(rows.slices or {}),
        "overlap": "; ".join(one.message for one in rows.overlaps),
        "package": findings.subject.package.digest,
        "baseline": findings.baseline.digest if findings.baseline else "",
        "gates": asked.source,
        "gates' digest": digest_of(asked) if asked.gates else "",
        "confidence": f"{asked.defaults.confidence:g}",
        "seed": str(asked.defaults.seed),
        "looks": f"{findings.looks.count:,}" if findings.looks else "",
    }
    lines = tuple((label, text) for label, text in told.items() if text)
    return Table("Data and rules", ("what", "value"), lines)


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
