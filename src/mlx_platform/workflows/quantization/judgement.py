"""Whether a smaller model is as good as its source."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.settings import QuantizationSettings
from mlx_platform.core.statistics import tango_z
from mlx_platform.core.tensors import Columns
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.registry.tolerance import Tolerance
from mlx_platform.workflows.quantization.chance import refuse_chance
from mlx_platform.workflows.quantization.rows import Rows, about

if TYPE_CHECKING:
    from mlx_platform.evaluation.compare import Comparison
    from mlx_platform.evaluation.gates import Gate
    from mlx_platform.evaluation.judge import Judged
    from mlx_platform.evaluation.measure import Measurement
    from mlx_platform.evaluation.scored import Scored
    from mlx_platform.inference.model import Model
    from mlx_platform.workflows.quantization.wishes import WishAnswer

DEFAULT_DROP = "1pp"
DEFAULT_RISE = "2%rel"  # of an error in the label's own unit, which has no percentage points
LEVEL = 0.05
"""One-sided, of all looks at the judging rows together."""
_NORMAL = NormalDist()
_LEAST_FLIPS, _MOST_FLIPS = 0.5, 5.0  # times the tolerated drop: fewer are not asked for, more not accepted


@dataclass(frozen=True, slots=True)
class Answered:
    """A model with its answers to the judged rows."""

    model: "Model"
    answers: Columns


@dataclass(frozen=True, slots=True)
class Judgement:
    """Both models on the same rows; `agreement`, `kl` and `relative_error` are None without a meaning."""

    metric: str
    before: "Mapping[str, Measurement]"
    after: "Mapping[str, Measurement]"
    comparison: "Comparison"
    gate: "Judged"
    wishes: "tuple[WishAnswer, ...]"
    agreement: float | None
    kl: float | None
    relative_error: float | None

    @property
    def checks(self) -> tuple[Check, ...]:
        return (self.gate.check, *(answer.check for answer in self.wishes))

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.checks)

    @property
    def confidence(self) -> float:
        """Of the one-sided test, and of the two-sided intervals."""
        return self.comparison.confidence

    def gates(self) -> list[dict[str, Any]]:
        """The gates' answers, JSON-ready."""
        return [self.gate.document(), *(answer.document() for answer in self.wishes)]


def accuracy_gate(task: str, max_drop: str | None, settings: QuantizationSettings) -> "Gate":
    """The gate that `--max-drop` means: on accuracy, or on the RMSE of a regression.

    Args:
        task: of the model.
        max_drop: the tolerated loss with its unit; None takes that of the settings, or else the default.
        settings: the project's own limits.

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
    limit = "max_drop" if primary.higher_is_better else "max_rise"
    drop = max_drop if max_drop is not None else default_of(limit, settings)
    try:
        return parse_expression(f"{primary.name}:{limit}={drop.replace(' ', '')}")
    except UsageError as error:
        if max_drop is None:
            raise
        message = f"--max-drop {printable(max_drop, 40)!r} cannot be used. {error.message}"
        raise UsageError(message, hint=error.hint) from error


def tolerance_of(gate: "Gate") -> Tolerance | None:
    """What a gate lets be lost."""
    margin = gate.margin
    return None if margin is None else Tolerance(margin.amount, margin.relative, gate.shown)


def default_of(limit: str, settings: QuantizationSettings) -> str:
    """What may be lost where nobody says otherwise."""
    if limit == "max_rise":
        return settings.max_rise or DEFAULT_RISE
    return settings.max_drop or DEFAULT_DROP


class Bench:
    """The original with its answers to the labelled rows, beside which every look puts one candidate."""

    def __init__(self, gate: "Gate", rows: Rows, before: Answered) -> None:
        """Score the original.

        Raises:
            UndecidedError: these rows do not tell it from a constant.
            UsageError: a row has no label, or one that the model does not know.
        """
        from mlx_platform.evaluation.measure import measure_scored
        from mlx_platform.evaluation.truth import CLASS_TASKS, model_labels

        self.gate = gate
        self._rows = rows
        self._before = before
        self._task = before.model.spec.task
        self._labels = model_labels(before.answers, before.model.labels) if self._task in CLASS_TASKS else ()
        with about(rows.path):
            self._scored = self._score(before.answers)
        refuse_chance(self._scored, gate.metric, rows.path)
        self._measured = measure_scored(self._scored)

    def judge(
        self, answers: Columns, wishes: "tuple[WishAnswer, ...]" = (), *, confidence: float = 1 - LEVEL
    ) -> Judgement:
        """Compare a candidate's answers with the original's: metrics, flips, and the gate.

        Args:
            answers: to the judged rows.
            wishes: what it was measured to be besides.
            confidence: of the one-sided test.
        """
        from mlx_platform.evaluation.compare import compare
        from mlx_platform.evaluation.judge import Known, judge
        from mlx_platform.evaluation.measure import measure_scored
        from mlx_platform.quantize.agreement import mean_divergence, relative_error

        scored = self._score(answers)
        measured = measure_scored(scored)
        comparison = compare(scored, self._scored, metrics=[self.gate.metric], confidence=confidence)
        (judged,) = judge([self.gate], Known(measured, comparison))
        old = self._before.answers
        probabilities = "probabilities" in old
        return Judgement(
            metric=self.gate.metric,
            before=self._measured,
            after=measured,
            comparison=comparison,
            gate=judged,
            wishes=wishes,
            agreement=comparison.flips.agreement if comparison.flips else None,
            kl=mean_divergence(old["probabilities"], answers["probabilities"]) if probabilities else None,
            relative_error=relative_error(old["value"], answers["value"])
            if self._task == "regression"
            else None,
        )

    def tolerated(self, confidence: float) -> float:
        """The loss up to which the rows that judge can be expected to let a candidate pass.

        A share of answers that change: as many as leave the score test its significance when as many of them
        are won as lost, n (margin / z)^2, within sensible bounds. For an error, the relative error of the
        answers that raises it by the margin if it has nothing to do with the answers' own.
        """
        value = self._measured[self.gate.metric].value
        margin = self._margin(value)
        rows = self._independent
        if self.gate.limit == "max_rise":
            size = float(np.sqrt(np.mean(np.square(self._before.answers["value"].astype(np.float64)))))
            return math.sqrt(max(0.0, 2 * value * margin + margin**2)) / size if size else 0.0
        flips = rows * (margin / _NORMAL.inv_cdf(confidence)) ** 2
        return min(max(flips, _LEAST_FLIPS * margin), _MOST_FLIPS * margin)

    def can_decide(self, confidence: float) -> bool:
        """Whether the rows are enough for a candidate that answers exactly as the original does."""
        if self.gate.limit == "max_rise":
            return True
        margin = self._margin(self._measured[self.gate.metric].value)
        return tango_z(0, 0, math.floor(self._independent), margin) > _NORMAL.inv_cdf(confidence)

    @property
    def _independent(self) -> float:
        return min(self._scored.effective_rows, self._scored.units)

    def _margin(self, value: float) -> float:
        return self.gate.margin.of(value) if self.gate.margin and math.isfinite(value) else 0.0

    def _score(self, answers: Columns) -> "Scored":
        from mlx_platform.evaluation.truth import score

        return score(
            self._task,
            self._rows.truth,
            answers,
            self._labels,
            column=self._rows.label,
            weights=self._rows.weights,
            groups=self._rows.groups,
        )
