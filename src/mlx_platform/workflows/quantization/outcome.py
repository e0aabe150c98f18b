"""What came of a quantization, and what the registry keeps of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any

from mlx_platform.core.evidence import Evidence
from mlx_platform.registry.version import ACTOR, QUANTIZED, Lineage, Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.overlap import CALIBRATION_DATA, CALIBRATION_FINGERPRINT
from mlx_platform.workflows.quantization.coverage import Coverage
from mlx_platform.workflows.quantization.judgement import BATCH, Judgement
from mlx_platform.workflows.quantization.rows import Rows
from mlx_platform.workflows.subject import Subject
from mlx_platform.workflows.tools import tool_versions

if TYPE_CHECKING:
    from pathlib import Path

    from mlx_platform.evaluation.measure import Measurement
    from mlx_platform.quantize.latency import Race
    from mlx_platform.quantize.static import Quantized

METHOD = "static-int8"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was found out. `version` is None where nothing was registered."""

    subject: Subject
    rows: Rows
    coverage: Coverage
    made: "Quantized"
    judgement: Judgement
    version: Version | None = None
    created: bool = False
    output: "Path | None" = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know before trusting or shipping the result."""
        found = list(self.rows.warnings)
        verified, race = self.made.verified, self.judgement.race
        if verified.size_after >= verified.size_before:
            found.append(
                f"The INT8 file is larger: {verified.size_after:,} bytes after {verified.size_before:,}."
            )
        if not verified.kernels:
            found.append("No integer operator runs on this processor: INT8 saves space here, not time.")
        batch = self.judgement.batch_race
        more = f" {BATCH} rows at once are {batch.speedup:.2f} times as fast." if batch else ""
        if race.upper < 1:
            found.append(
                f"A single row is slower in INT8 on this machine, {race.speedup:.2f} times as fast.{more}"
            )
        elif race.lower <= 1:
            found.append(f"A single row is not measurably faster in INT8 on this machine.{more}")
        inner = self.made.prepared.inspection.in_subgraphs
        if inner:
            found.append(f"{inner} layers inside If, Loop or Scan bodies stay in float32.")
        note = self.made.recalled.note
        return (*found, *self.made.built.notes, *((note,) if note else ()))

    def size(self) -> dict[str, Any]:
        verified = self.made.verified
        return {
            "before": verified.size_before,
            "after": verified.size_after,
            "ratio": verified.size_after / verified.size_before,
        }

    def latency(self) -> dict[str, Any]:
        """One row at a time; `batch` is several at once, None where the model does not take them."""
        judgement = self.judgement
        batch = judgement.batch_race
        return {
            **_race_document(judgement.race),
            "batch": {"rows": BATCH, **_race_document(batch)} if batch else None,
        }

    def measured(self) -> dict[str, Any]:
        """The gated metric before and after; for a share also the drop with its 95 % interval, in points."""
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
            "quantization": METHOD,
            "quantization_target": outcome.made.target.name,
            CALIBRATION_DATA: context.settings.written(outcome.rows.calibration.path),
            "calibration_rows": str(outcome.rows.calibration.rows),
            CALIBRATION_FINGERPRINT: outcome.rows.fingerprints["calibration"],
        },
        metrics=_finite(outcome.judgement.after),
        parent=source.ref,
        description=f"Static INT8 of {source.ref}",
        tags={QUANTIZED: METHOD, ACTOR: context.actor},
    )


def evidence_of(outcome: Outcome, version: Version, created: datetime) -> Evidence:
    """The finding that a version is as good as the one it was made from."""
    judgement, made = outcome.judgement, outcome.made
    calibration = outcome.rows.calibration
    return Evidence(
        kind="quantization",
        digest=version.digest,
        verdict=judgement.verdict,
        created=created,
        data_fingerprint=outcome.rows.fingerprints["data"],
        parameters={
            "method": METHOD,
            "source": outcome.subject.ref,
            "source_digest": outcome.subject.package.digest,
            "target": str(made.target),
            "calibration_rows": calibration.rows,
            "calibration_fingerprint": outcome.rows.fingerprints["calibration"],
            "coverage": outcome.coverage.share,
            "label": outcome.rows.label,
            "gate": outcome.judgement.gate.gate.name,
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
            "gates": judgement.gates(),
        },
        tools={**tool_versions(), "onnx": metadata.version("onnx")},
    )


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
