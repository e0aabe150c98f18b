"""What an evaluation found out, and the evidence that is kept of it."""

from dataclasses import dataclass
from typing import Any

from mlx_platform.core.clock import Clock
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.compare import Comparison
from mlx_platform.evaluation.gates import SYSTEM_METRICS, Gate, GateFile
from mlx_platform.evaluation.judge import ITSELF, Judged, finite, shown
from mlx_platform.evaluation.latency import Timings
from mlx_platform.evaluation.looks import Looks
from mlx_platform.evaluation.measure import Measurement
from mlx_platform.evaluation.scored import Scored
from mlx_platform.evaluation.slices import SliceResult
from mlx_platform.workflows.evaluation.comparing import Baseline, Compared, Guard
from mlx_platform.workflows.evaluation.overlap import overlap_checks
from mlx_platform.workflows.evaluation.rows import Rows
from mlx_platform.workflows.subject import Subject
from mlx_platform.workflows.tools import tool_versions


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the report tells.

    Attributes:
        judged: the gates' answers in their order; one about slices is answered for all of them together.
        slices: what was found out about each slice, with the gates' answers about it.
        default_gates: nobody named any.
        looks: at these rows through these gates; None where they cannot be counted.
    """

    subject: Subject
    rows: Rows
    asked: GateFile
    compared: Compared
    judged: tuple[Judged, ...]
    slices: tuple[SliceResult, ...] = ()
    default_gates: bool = False
    looks: Looks | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return self.compared.labels

    @property
    def scored(self) -> Scored:
        return self.compared.scored

    @property
    def measurements(self) -> dict[str, Measurement]:
        return self.compared.measurements

    @property
    def baseline(self) -> Baseline | None:
        return self.compared.baseline

    @property
    def comparison(self) -> Comparison | None:
        return self.compared.comparison

    @property
    def timings(self) -> Timings | None:
        return self.compared.timings

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.compared.guards

    @property
    def checks(self) -> tuple[Check, ...]:
        """The gates, and the rows where the gate file asks for more than there are, or for other ones."""
        overlap = overlap_checks(self.rows.overlaps, self.asked.dataset.max_overlap)
        checks = (*(one.check for one in self.judged), *self._ids, *overlap)
        least = self.asked.dataset.min_rows
        have = self.rows.dataset.rows
        if have >= least:
            return checks
        message = "the gate file asks for more rows than there are"
        return (Check("rows", Verdict.UNDECIDED, f"{have:,}", f">= {least:,}", message, "gates"), *checks)

    @property
    def _ids(self) -> tuple[Check, ...]:
        """Rows that may be there twice: what they add up to is never a pass."""
        count = self.rows.doubtful_ids
        if not count or not self.judged:
            return ()
        message = "rows with the same id, or without one, may count twice"
        return (Check("ids", Verdict.UNDECIDED, plural(count, "doubtful row"), "0", message, "gates"),)

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.checks)

    @property
    def measured(self) -> bool:
        """Whether any metric of the answers could be measured at all."""
        return any(not one.reason for name, one in self.measurements.items() if name not in SYSTEM_METRICS)

    @property
    def warnings(self) -> tuple[str, ...]:
        warned = [
            f"{one.gate.name}: {one.check.measured or one.check.message}"
            for one in self.judged
            if one.gate.warn and one.check.verdict is not Verdict.PASS
        ]
        looked = [self.looks.warning] if self.looks and self.looks.warning else []
        return (*self.rows.warnings, *warned, *looked)


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


def slice_document(one: SliceResult) -> dict[str, Any]:
    """A slice with its numbers and the gates' answers about it, JSON-ready."""
    return {
        "by": list(one.by),
        "key": dict(one.key),
        "rows": one.rows,
        "too_small": one.too_small,
        "metrics": {name: measurement_document(found) for name, found in one.measurements.items()},
        "gates": [judged.document() for judged in one.judged],
    }


def measurement_document(one: Measurement) -> dict[str, Any]:
    document: dict[str, Any] = {
        "value": finite(one.value),
        "lower": finite(one.lower),
        "upper": finite(one.upper),
        "rows": one.rows,
        "unit": one.unit,
        "higher_is_better": one.higher_is_better,
        "method": one.method or None,
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
            "guards": {guard.name: guard.digest for guard in findings.guards},
            "looks": findings.looks.count if findings.looks else None,
            "compared": any(_binds(one.gate) for one in findings.judged),
            "data": data,
            "label": findings.rows.label,
            "rows": findings.rows.dataset.rows,
            "latency": findings.timings.document() if findings.timings else None,
        },
        numbers=numbers_of(findings),
        tools=tool_versions(),
    )


def _binds(gate: Gate) -> bool:
    """Whether a gate's answer holds for the baseline only that it was compared with."""
    return gate.needs_baseline and not gate.guard and not gate.warn


def headline(findings: Findings) -> str:
    """The evaluation in one sentence."""
    primary = next(iter(findings.measurements.values()))
    value = shown(primary.value, primary.lower, primary.upper)
    start = f"{findings.subject.ref}: {primary.name} {value} on {plural(primary.rows, 'row')}"
    return f"{start}; {_outcome(findings)}."


def _outcome(findings: Findings) -> str:
    decided = [check for check in findings.checks if not check.skipped]
    if not decided:
        if self_compared := [one for one in findings.judged if one.check.skipped == ITSELF]:
            gates = "the gate was" if len(self_compared) == 1 else f"{len(self_compared):,} gates were"
            return f"{gates} skipped because candidate and baseline are the same package"
        return "no gate says whether that is enough"
    if findings.verdict is Verdict.PASS:
        return f"{plural(len(decided), 'gate')} passed"
    bad = [check for check in decided if check.verdict is findings.verdict]
    are = "is" if len(bad) == 1 else "are"
    words = {
        Verdict.FAIL: "failed",
        Verdict.UNDECIDED: f"{are} undecided",
        Verdict.ERROR: "could not be judged",
    }
    names = ", ".join(f"{check.name} {check.threshold}" for check in bad)
    return f"{len(bad)} of {plural(len(decided), 'gate')} {words[findings.verdict]}: {names}"
