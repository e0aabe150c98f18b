"""Whether a quantized model is as good as its source, and what it gained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Columns, Tensors
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.workflows.quantization.rows import Calibration, Rows, feeds

if TYPE_CHECKING:
    from mlx_platform.evaluation.compare import Comparison
    from mlx_platform.evaluation.gates import Gate
    from mlx_platform.evaluation.judge import Judged
    from mlx_platform.evaluation.measure import Measurement
    from mlx_platform.inference.model import Model
    from mlx_platform.quantize.latency import Race

BATCH = 32
_RACE_SECONDS = 1.0
DEFAULT_DROP = "1pp"
DEFAULT_RISE = "2%rel"  # of an error in the label's own unit, which has no percentage points


@dataclass(frozen=True, slots=True)
class Answered:
    """A model with its answers to the judged rows."""

    model: "Model"
    answers: Columns


@dataclass(frozen=True, slots=True)
class Judgement:
    """Both models on the same rows.

    `race` is about one row at a time, `batch_race` about `BATCH` rows at once where the model takes them.
    `agreement`, `kl` and `relative_error` are None where they have no meaning.
    """

    metric: str
    before: "Mapping[str, Measurement]"
    after: "Mapping[str, Measurement]"
    comparison: "Comparison"
    gate: "Judged"
    race: "Race"
    batch_race: "Race | None"
    agreement: float | None
    kl: float | None
    relative_error: float | None
    min_speedup: float | None

    @property
    def checks(self) -> tuple[Check, ...]:
        if self.min_speedup is None:
            return (self.gate.check,)
        return (self.gate.check, _speed_check(self.race, self.min_speedup))

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.checks)

    def gates(self) -> list[dict[str, Any]]:
        """The gates' answers, JSON-ready."""
        return [self.gate.document(), *map(self._speed_document, self.checks[1:])]

    def _speed_document(self, check: Check) -> dict[str, Any]:
        """The speed gate with the keys of the others; see `Judged.document`."""
        return {
            "name": f"{check.name} {check.threshold}",
            "metric": "speedup",
            "limit": "min",
            "level": "fail",
            "verdict": str(check.verdict),
            "shown": check.measured,
            "message": check.message,
            "skipped": check.skipped,
            "measured": self.race.speedup,
            "threshold": self.min_speedup,
            "lower": self.race.lower,
            "upper": self.race.upper,
        }


def accuracy_gate(task: str, max_drop: str | None) -> "Gate":
    """The gate that `--max-drop` means: on accuracy, or on the RMSE of a regression; None takes the default.

    Raises:
        UsageError: the drop has no unit, or one that the metric does not have.
        UndecidedError: the model's outputs have no meaning that labels could be compared with.
    """
    from mlx_platform.evaluation.gate_parser import parse_expression
    from mlx_platform.evaluation.metrics import metrics_of

    metrics = metrics_of(task)
    if not metrics:
        raise UndecidedError(
            "The model declares no task, so nothing can say whether its answers stay as good.",
            hint='Write task = "classification" or "regression" in its model.toml and register it again.',
        )
    primary = metrics[0]
    default = DEFAULT_RISE if task == "regression" else DEFAULT_DROP
    drop = default if max_drop is None else max_drop.replace(" ", "")
    limit = "max_drop" if primary.higher_is_better else "max_rise"
    return parse_expression(f"{primary.name}:{limit}={drop}")


def judge_pair(
    gate: "Gate", rows: Rows, before: Answered, after: Answered, min_speedup: float | None
) -> Judgement:
    """Compare the quantized model with its source: metrics, flips, answers, and time side by side."""
    from mlx_platform.evaluation.compare import compare
    from mlx_platform.evaluation.judge import Known, judge
    from mlx_platform.evaluation.measure import measure_scored
    from mlx_platform.evaluation.truth import CLASS_TASKS, model_labels, score
    from mlx_platform.quantize.agreement import mean_divergence, relative_error

    task = before.model.spec.task
    labels = model_labels(before.answers, before.model.labels) if task in CLASS_TASKS else ()
    scores = [score(task, rows.truth, side.answers, labels, column=rows.label) for side in (before, after)]
    measured = [measure_scored(scored) for scored in scores]
    comparison = compare(scores[1], scores[0], metrics=[gate.metric])
    (judged,) = judge([gate], Known(measured[1], comparison))
    races = _races(before.model, after.model, rows.calibration)
    old, new = before.answers, after.answers
    probabilities = "probabilities" in old
    return Judgement(
        metric=gate.metric,
        before=measured[0],
        after=measured[1],
        comparison=comparison,
        gate=judged,
        race=races[0],
        batch_race=races[1],
        agreement=comparison.flips.agreement if comparison.flips else None,
        kl=mean_divergence(old["probabilities"], new["probabilities"]) if probabilities else None,
        relative_error=relative_error(old["value"], new["value"]) if task == "regression" else None,
        min_speedup=min_speedup,
    )


def _races(before: "Model", after: "Model", calibration: Calibration) -> "tuple[Race, Race | None]":
    """A lone row, and a batch as a busy server makes it."""
    from mlx_platform.quantize.latency import race

    def run(inputs: Tensors) -> "Race":
        return race(lambda: before.run(inputs), lambda: after.run(inputs), seconds=_RACE_SECONDS)

    lone = run(next(feeds(before, calibration.first(1))))
    fixed = any(spec.shape[:1] != (None,) for spec in before.spec.inputs)
    if fixed or calibration.rows < BATCH:
        return lone, None
    return lone, run(before.encode(calibration.first(BATCH).columns))


def _speed_check(race: "Race", least: float) -> Check:
    return Check(
        name="speedup",
        verdict=Verdict.PASS if race.speedup >= least else Verdict.FAIL,
        measured=f"{race.speedup:.2f} [{race.lower:.2f}, {race.upper:.2f}]",
        threshold=f">= {least:g}",
        message="" if race.speedup >= least else "INT8 is not that much faster on this machine",
        group="gates",
    )


def check_speedup(min_speedup: float | None) -> None:
    """Refuse a `--min-speedup` that means nothing."""
    if min_speedup is not None and not 0 < min_speedup < 1000:
        raise UsageError(
            f"A speed-up of {min_speedup:g} cannot be asked for.", hint="Write --min-speedup 1.2."
        )
