"""What came of a quantization, and what the registry keeps of it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.version import ACTOR, QUANTIZED, Lineage, Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.overlap import CALIBRATION_DATA, CALIBRATION_FINGERPRINT
from mlx_platform.workflows.quantization.candidates import BATCH, Candidate
from mlx_platform.workflows.quantization.choosing import Choosing, Look, ended_by
from mlx_platform.workflows.quantization.coverage import Coverage
from mlx_platform.workflows.quantization.judgement import Judgement, tolerance_of
from mlx_platform.workflows.quantization.request import Request
from mlx_platform.workflows.quantization.rows import Rows
from mlx_platform.workflows.quantization.wishes import NOTICEABLE_MS, SPEED
from mlx_platform.workflows.subject import Subject
from mlx_platform.workflows.tools import tool_versions

if TYPE_CHECKING:
    from pathlib import Path

    from mlx_platform.evaluation.gates import Gate
    from mlx_platform.evaluation.measure import Measurement
    from mlx_platform.quantize.latency import Race
    from mlx_platform.quantize.methods import Made

LABELS = {"static": "static-int8", "dynamic": "dynamic-int8", "fp16": "fp16", "int4": "int4"}
SHORT = {"static": "int8", "dynamic": "int8", "fp16": "fp16", "int4": "int4"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was found out. `version` is None where nothing was registered."""

    subject: Subject
    request: Request
    rows: Rows
    coverage: Coverage
    choosing: Choosing
    chosen: Look
    version: Version | None = None
    created: bool = False
    output: "Path | None" = None

    @property
    def candidate(self) -> Candidate:
        return self.chosen.candidate

    @property
    def made(self) -> "Made":
        return self.candidate.made

    @property
    def judgement(self) -> Judgement:
        return self.chosen.judgement

    @property
    def method(self) -> str:
        """What the registry calls the way it was made."""
        return LABELS[self.made.method]

    @property
    def ranges_by(self) -> str:
        """How the ranges of activations were chosen; `none` where there are no such ranges."""
        return str(self.candidate.rule or "none")

    @property
    def short(self) -> str:
        """The smaller type, for the heads of tables."""
        return SHORT[self.made.method]

    @property
    def title(self) -> str:
        """The method for people."""
        from mlx_platform.quantize.methods import METHODS

        return METHODS[self.made.method].title

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know before trusting or shipping the result."""
        found = [*self.rows.warnings, *self.choosing.notes]
        verified, race = self.made.verified, self.candidate.race
        if self.made.method in ("static", "dynamic") and not verified.kernels:
            found.append("No integer operator runs on this processor: INT8 saves space here, not time.")
        refused = any(
            check.name == SPEED and check.verdict is Verdict.FAIL for check in self.judgement.checks
        )
        if not refused:
            found += _about_speed(race, self.candidate.batch_race, self.short)
        return (*found, *self.made.notes)

    def size(self) -> dict[str, Any]:
        verified = self.made.verified
        return {
            "before": verified.size_before,
            "after": verified.size_after,
            "ratio": verified.size_after / verified.size_before,
        }

    def latency(self) -> dict[str, Any]:
        """One row at a time; `batch` is several at once, None where the model does not take them."""
        candidate = self.candidate
        batch = candidate.batch_race
        return {
            **_race_document(candidate.race),
            "batch": {"rows": BATCH, **_race_document(batch)} if batch else None,
        }

    def measured(self) -> dict[str, Any]:
        """The gated metric before and after; for a share also the drop with its interval, in points."""
        judgement = self.judgement
        difference = judgement.comparison.differences[judgement.metric]
        found: dict[str, Any] = {"before": difference.baseline, "after": difference.candidate}
        if difference.metric.unit == "share":
            # Taken from zero, for the negative of no drop at all would read as -0.0.
            drop = (0.0 - gain for gain in (difference.value, difference.upper, difference.lower))
            found |= dict(zip(("drop_pp", "lower", "upper"), (100 * value for value in drop), strict=True))
        else:
            found |= {"rise": difference.value, "lower": difference.lower, "upper": difference.upper}
        return found

    def candidates(self) -> list[dict[str, Any]]:
        """Everything that was made, JSON-ready; `divergence` and `loss` are from the original's answers."""
        looks = {id(look.candidate): look for look in self.choosing.looks}
        return [
            {
                "name": candidate.name,
                "method": LABELS[candidate.made.method],
                "in_float32": sorted(candidate.reverted),
                "size_ratio": candidate.size_ratio,
                "speedup": candidate.race.speedup,
                "divergence": candidate.distance.divergence,
                "loss": candidate.distance.loss,
                "verdict": str(looks[id(candidate)].judgement.verdict) if id(candidate) in looks else None,
                "confidence": looks[id(candidate)].judgement.confidence if id(candidate) in looks else None,
                "chosen": candidate is self.candidate,
            }
            for candidate in self.choosing.candidates
        ]

    def search(self) -> dict[str, Any] | None:
        """What the search for layers measured, JSON-ready."""
        surgeon = self.choosing.surgeon
        if surgeon is None or surgeon.search is None:
            return None
        found = surgeon.search
        return {
            "measured": len(found.points),
            "stopped": found.stopped or None,
            "unranked": found.unranked,
            "ended": ended_by(found) or None,
            "rows": self.rows.search.rows,
            "layers": [{"node": one.node, "gain": one.gain, "bytes": one.cost} for one in found.ranking],
        }

    def flips(self) -> dict[str, int] | None:
        flips = self.judgement.comparison.flips
        return None if flips is None else {"lost": flips.lost, "won": flips.won, "rows": flips.rows}

    def nodes(self) -> dict[str, Any]:
        verified = self.made.verified
        return {
            "quantized": verified.quantized_layers,
            "left_out": len(self.made.left_out),
            "quantize_linear": verified.quantize_nodes,
            "dequantize_linear": verified.dequantize_nodes,
            "kernels": dict(verified.kernels),
        }


def lineage_of(context: Context, outcome: Outcome, source: Version) -> Lineage:
    """Where the quantized version comes from: the source's data and commit, how it was made, and by whom."""
    return Lineage(
        dataset_version=source.dataset_version,
        dataset_fingerprint=source.document()["dataset_fingerprint"],
        git_commit=source.git_commit,
        params={
            **source.params,
            "quantization": outcome.method,
            "quantization_target": outcome.made.target.name,
            CALIBRATION_DATA: context.settings.written(outcome.rows.calibration.path),
            "calibration_rows": str(outcome.rows.calibration.rows),
            "calibration_method": outcome.ranges_by,
            CALIBRATION_FINGERPRINT: outcome.rows.fingerprints["calibration"],
        },
        metrics=_finite(outcome.judgement.after),
        parent=source.ref,
        description=f"{outcome.title[:1].upper()}{outcome.title[1:]} of {source.ref}",
        tags={QUANTIZED: outcome.method, ACTOR: context.actor},
    )


def _tolerated(gate: "Gate") -> dict[str, Any]:
    """The tolerated loss, to hold the limit of another day against."""
    tolerance = tolerance_of(gate)
    if tolerance is None:
        return {}
    return {
        "limit": gate.limit,
        "tolerated": tolerance.shown,
        "tolerated_amount": tolerance.amount,
        "tolerated_relative": tolerance.relative,
    }


def evidence_of(context: Context, outcome: Outcome, version: Version) -> Evidence:
    """The finding that a version is as good as the one it was made from."""
    judgement, made = outcome.judgement, outcome.made
    calibration = outcome.rows.calibration
    return Evidence(
        kind="quantization",
        digest=version.digest,
        verdict=judgement.verdict,
        created=context.clock(),
        data_fingerprint=outcome.rows.fingerprints["data"],
        parameters={
            "method": outcome.method,
            "candidate": outcome.candidate.name,
            "in_float32": sorted(outcome.candidate.reverted),
            "looks": len(outcome.choosing.looks),
            "source": outcome.subject.ref,
            "source_digest": outcome.subject.package.digest,
            "target": str(made.target),
            "calibration_rows": calibration.rows,
            "calibration_method": outcome.ranges_by,
            "calibration_fingerprint": outcome.rows.fingerprints["calibration"],
            "coverage": outcome.coverage.share,
            "data": context.settings.written(outcome.rows.path),
            "label": outcome.rows.label,
            "gate": outcome.judgement.gate.gate.name,
            **_tolerated(outcome.judgement.gate.gate),
            "confidence": judgement.comparison.confidence,
        },
        numbers={
            judgement.metric: outcome.measured(),
            "size": outcome.size(),
            "latency_ms": outcome.latency(),
            "agreement": judgement.agreement,
            "kl": judgement.kl,
            "relative_error": judgement.relative_error,
            "flips": outcome.flips(),
            "nodes": outcome.nodes(),
            "metrics": _finite(judgement.after),
            "rows": judgement.comparison.rows,
            "independent_rows": judgement.comparison.units,
            "gates": judgement.gates(),
        },
        tools={**tool_versions(), "onnx": metadata.version("onnx")},
    )


def _about_speed(race: "Race", batch: "Race | None", short: str) -> Iterator[str]:
    """Warnings where no gate has spoken."""
    more = f" {BATCH} rows at once are {batch.speedup:.2f} times as fast." if batch else ""
    if race.upper < 1:
        small = race.after_ms < NOTICEABLE_MS
        matters = f"; at {race.after_ms:.2g} ms it is too quick for that to matter" if small else ""
        yield (
            f"A single row is slower in {short} on this machine, {race.speedup:.2f} times as fast"
            f"{matters}.{more}"
        )
    elif race.lower <= 1:
        yield f"A single row is not measurably faster in {short} on this machine.{more}"
    elif batch and batch.upper < 1:
        yield f"Though a single row is faster in {short}, {more[1:]}"


def _race_document(race: "Race") -> dict[str, float]:
    return {
        "before": race.before_ms,
        "after": race.after_ms,
        "speedup": race.speedup,
        "lower": race.lower,
        "upper": race.upper,
    }


def _finite(measured: "Mapping[str, Measurement]") -> dict[str, float]:
    return {name: found.value for name, found in measured.items() if math.isfinite(found.value)}
