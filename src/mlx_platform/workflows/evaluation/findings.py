"""What an evaluation found out, and the evidence that is kept of it."""

from dataclasses import dataclass
from typing import Any

from mlx_platform.core.clock import Clock
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.compare import Comparison
from mlx_platform.evaluation.gates import GateFile
from mlx_platform.evaluation.judge import Judged, finite, shown
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.scored import Scored
from mlx_platform.evaluation.slices import SliceResult
from mlx_platform.workflows.evaluation.rows import Rows
from mlx_platform.workflows.subject import Subject
from mlx_platform.workflows.tools import tool_versions


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the subject was compared with."""

    ref: str
    digest: str
    scored: Scored
    measurements: dict[str, Measurement]


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the report tells; `default_gates` says that nobody named any."""

    subject: Subject
    rows: Rows
    labels: tuple[str, ...]
    asked: GateFile
    scored: Scored
    measurements: dict[str, Measurement]
    baseline: Baseline | None
    comparison: Comparison | None
    judged: tuple[Judged, ...]
    slices: tuple[SliceResult, ...] = ()
    default_gates: bool = False

    @property
    def checks(self) -> tuple[Check, ...]:
        """The gates, and the rows where the gate file asks for more than there are."""
        checks = tuple(one.check for one in self.judged)
        least = self.asked.dataset.min_rows
        have = self.rows.dataset.rows
        if have >= least:
            return checks
        message = "the gate file asks for more rows than there are"
        return (Check("rows", Verdict.UNDECIDED, f"{have:,}", f">= {least:,}", message, "gates"), *checks)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.checks)

    @property
    def measured(self) -> bool:
        """Whether any metric of the answers could be measured at all."""
        return any(not one.reason for name, one in self.measurements.items() if name != "model_size_mb")

    @property
    def warnings(self) -> tuple[str, ...]:
        warned = [
            f"{one.gate.name}: {one.check.measured or one.check.message}"
            for one in self.judged
            if one.gate.warn and one.check.verdict is not Verdict.PASS
        ]
        return (*self.rows.warnings, *warned)


def numbers_of(findings: Findings) -> dict[str, Any]:
    """Metrics by name with their intervals, differences, flips and gates, JSON-ready."""
    measurements = findings.measurements.items()
    numbers: dict[str, Any] = {
        name: {"value": finite(one.value), "lower": finite(one.lower), "upper": finite(one.upper)}
        for name, one in measurements
    }
    compared = comparison_document(findings) or {}
    for key in ("differences", "won", "lost", "agreement"):
        if key in compared:
            numbers[key] = compared[key]
    return numbers | {"gates": [one.document() for one in findings.judged]}


def measurement_document(one: Measurement) -> dict[str, Any]:
    document: dict[str, Any] = {
        "value": finite(one.value),
        "lower": finite(one.lower),
        "upper": finite(one.upper),
        "rows": one.rows,
    }
    return document | ({"reason": one.reason} if one.reason else {})


def comparison_document(findings: Findings) -> dict[str, Any] | None:
    baseline, comparison = findings.baseline, findings.comparison
    if baseline is None or comparison is None:
        return None
    document: dict[str, Any] = {
        "against": {"ref": baseline.ref, "digest": baseline.digest},
        "rows": comparison.rows,
        "identical": comparison.identical,
        "differences": {
            name: {
                "candidate": finite(one.candidate),
                "baseline": finite(one.baseline),
                "value": finite(one.value),
                "lower": finite(one.lower),
                "upper": finite(one.upper),
            }
            for name, one in comparison.differences.items()
        },
    }
    if comparison.flips:
        flips = comparison.flips
        document |= {
            "won": flips.won,
            "lost": flips.lost,
            "agreement": flips.agreement,
            "mcnemar_p": flips.p_value,
        }
    return document


def evidence_of(findings: Findings, clock: Clock, *, data: str) -> Evidence:
    """The evaluation as evidence about the subject's package; `data` names the rows for a repetition."""
    return Evidence(
        kind="evaluation",
        digest=findings.subject.package.digest,
        verdict=findings.verdict,
        created=clock(),
        data_fingerprint=findings.rows.dataset.fingerprint,
        parameters={
            "gates": [one.gate.name for one in findings.judged],
            "confidence": findings.asked.defaults.confidence,
            "seed": findings.asked.defaults.seed,
            "gate_file": findings.asked.digest,
            "baseline": findings.asked.baseline,
            "against": findings.baseline.digest if findings.baseline else "",
            "against_ref": findings.baseline.ref if findings.baseline else "",
            "compared": any(one.gate.needs_baseline and not one.gate.warn for one in findings.judged),
            "data": data,
            "label": findings.rows.label,
            "rows": findings.rows.dataset.rows,
        },
        numbers=numbers_of(findings),
        tools=tool_versions(),
    )


def headline(findings: Findings) -> str:
    """The evaluation in one sentence."""
    primary = next(iter(findings.measurements.values()))
    value = shown(primary.value, primary.lower, primary.upper)
    start = f"{findings.subject.ref}: {primary.name} {value} on {plural(primary.rows, 'row')}"
    return f"{start}; {_outcome(findings)}."


def _outcome(findings: Findings) -> str:
    decided = [check for check in findings.checks if not check.skipped]
    if not decided:
        return "no gate says whether that is enough"
    if findings.verdict is Verdict.PASS:
        return f"{plural(len(decided), 'gate')} passed"
    bad = [check for check in decided if check.verdict is findings.verdict]
    words = {Verdict.FAIL: "failed", Verdict.UNDECIDED: "undecided", Verdict.ERROR: "could not be judged"}
    names = ", ".join(f"{check.name} {check.threshold}" for check in bad)
    return f"{len(bad)} of {plural(len(decided), 'gate')} {words[findings.verdict]}: {names}"
