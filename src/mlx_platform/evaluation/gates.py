"""Gates: what a model must reach, and how much it may lose."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mlx_platform.core.errors import UsageError
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import NONE, metric_of

Limit = Literal["min", "max", "max_drop", "max_rise", "max_ratio", "superiority"]

PAIR_METRICS: Mapping[str, bool] = {"agreement": True, "flips_won": True, "flips_lost": False}
"""Shares of rows that only a comparison has, and whether higher is better."""
SYSTEM_METRICS: Mapping[str, bool] = {
    "latency_p50_ms": False,
    "latency_p95_ms": False,
    "latency_mean_ms": False,
    "throughput_rps": True,
    "model_size_mb": False,
}
"""Numbers about the package rather than its answers, and whether higher is better."""

Key = tuple[tuple[str, str], ...]
"""A slice: columns with the value that the slice's rows have in each, as text."""


MISSING = "(missing)"


def cell_text(value: Any) -> str:
    """A cell as the text that tells slices apart: 3, 3.0 and "3" are one, and so are all missing values."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


@dataclass(frozen=True, slots=True)
class SliceRule:
    """Which slices of the rows a gate asks about.

    Attributes:
        by: columns, or combinations of columns, whose values make slices.
        min_rows: a slice with fewer rows is listed and not judged.
        correct: how the chance of a false alarm is kept for all slices of the gate together.
        require: slices that must have enough rows; without them the gate is undecided.
    """

    by: tuple[tuple[str, ...], ...]
    min_rows: int = 50
    correct: Literal["holm", "none"] = "holm"
    require: tuple[Key, ...] = ()

    @property
    def shown(self) -> str:
        """`lang, lang+device`."""
        return ", ".join("+".join(columns) for columns in self.by)


@dataclass(frozen=True, slots=True)
class Gate:
    """One question: a metric with one limit.

    Attributes:
        threshold: of `min`, `max` and `max_ratio`.
        margin: of `max_drop` and `max_rise`.
        shown: the limit as it was written, such as `1pp`.
        warn: the answer is reported and never decides.
        slices: the gate asks about each slice of the rows rather than about all rows together.
        guard: what it compares with instead of the baseline, such as `pinned`; empty for the baseline.
        source: the file that asks; empty for an expression.
        line: where it does, from 1; 0 when unknown.
    """

    metric: str
    limit: Limit
    threshold: float = math.nan
    margin: Margin | None = None
    shown: str = ""
    warn: bool = False
    slices: SliceRule | None = None
    guard: str = ""
    source: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)

    @property
    def bound(self) -> str:
        """The limit for people: `>= 0.9`, `max_drop 1pp`, `max_drop 2pp against pinned`, `superiority`."""
        sign = {"min": ">=", "max": "<="}.get(self.limit, self.limit)
        text = f"{sign} {self.shown}".rstrip()
        return f"{text} against {self.guard}" if self.guard else text

    @property
    def name(self) -> str:
        """The question for people: `accuracy max_drop 1pp`, `accuracy >= 0.8 by lang`."""
        text = f"{self.metric} {self.bound}"
        return f"{text} by {self.slices.shown}" if self.slices else text

    @property
    def place(self) -> str:
        """Where it is asked: `gates.toml, line 7: accuracy >= 0.9`."""
        if not self.source:
            return f"The gate {self.name!r}"
        line = f", line {self.line}" if self.line else ""
        return f"{self.source}{line}: {self.name}"

    @property
    def needs_baseline(self) -> bool:
        return self.limit not in ("min", "max") or self.metric in PAIR_METRICS


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds for every gate: the level of the tests, the seed, and what becomes of open questions."""

    confidence: float = 0.95
    seed: int = 0
    on_inconclusive: Literal["undecided", "fail", "error"] = "undecided"
    on_missing: Literal["undecided", "skip", "error"] = "undecided"


@dataclass(frozen=True, slots=True)
class DatasetRules:
    """What the gate file says about its data; empty where it says nothing.

    Attributes:
        path: the file's name.
        id: the column that names rows.
        label: the column of the truth.
        weight: the column of what each row counts.
        group: the column of the clusters that rows belong to.
        query: the column of the queries that a ranking is about.
        positive: the label that precision and recall are about, where there are two.
        sha256: of the file's bytes.
        min_rows: with fewer the evaluation is undecided.
        disjoint_from: files that must share no rows with it.
        max_overlap: the share of rows that may be in them all the same.
    """

    path: str = ""
    id: str = ""
    label: str = ""
    weight: str = ""
    group: str = ""
    query: str = ""
    positive: str = ""
    sha256: str = ""
    min_rows: int = 0
    disjoint_from: tuple[str, ...] = ()
    max_overlap: float | None = None


@dataclass(frozen=True, slots=True)
class GateFile:
    """`baseline` is a reference, an alias, `version:N`, `none`, or empty for the default.

    `digest` is the same for files that ask the same, however they are written, and empty without a file.
    """

    gates: tuple[Gate, ...] = ()
    defaults: Defaults = field(default_factory=Defaults)
    dataset: DatasetRules = field(default_factory=DatasetRules)
    baseline: str = ""
    source: str = ""
    digest: str = ""

    @property
    def slice_columns(self) -> tuple[str, ...]:
        """The columns that make the slices of some gate."""
        rules = (gate.slices for gate in self.gates if gate.slices)
        return tuple(dict.fromkeys(column for rule in rules for by in rule.by for column in by))

    @property
    def guards(self) -> tuple[str, ...]:
        """What some gate compares with besides the baseline."""
        return tuple(dict.fromkeys(gate.guard for gate in self.gates if gate.guard))


def check_task(
    gates: Iterable[Gate],
    task: str,
    *,
    labels: Sequence[str] | None = None,
    custom: Mapping[str, Metric] = NONE,
) -> None:
    """Refuse gates on metrics that the task, or a model with these classes, does not have.

    Raises:
        UsageError: names the gate, its file and line, and the metrics that the task has.
    """
    for gate in gates:
        if gate.metric in SYSTEM_METRICS:
            continue
        if gate.metric in PAIR_METRICS:
            if task != "classification":
                raise UsageError(
                    f"{gate.place}: {gate.metric} belongs to classification, and this is a model for {task}."
                )
            continue
        try:
            metric = metric_of(gate.metric, task, custom=custom, labels=labels)
        except UsageError as error:
            raise UsageError(f"{gate.place}: {error.message}", hint=error.hint) from error
        if labels and metric.classes != "any" and (len(labels) == 2) is not (metric.classes == "two"):
            meant = "two classes" if metric.classes == "two" else "more than two classes"
            raise UsageError(
                f"{gate.place}: {metric.name} is for {meant}, and this model has {len(labels)}.",
                hint="Take roc_auc_ovr, or recall[CLASS]." if metric.classes == "two" else "Take roc_auc.",
            )


def check_contradictions(gates: Iterable[Gate]) -> None:
    """Refuse limits, from whatever places, that no model can meet together or that make no sense together.

    Raises:
        UsageError: names both gates with their files and lines.
    """
    by_metric: dict[str, list[Gate]] = {}
    for gate in gates:
        by_metric.setdefault(gate.metric, []).append(gate)
    for metric, asked in by_metric.items():
        _check_range(metric, asked)
        _check_wish(metric, [gate for gate in asked if not gate.warn])


def _check_range(metric: str, gates: Sequence[Gate]) -> None:
    lowest = max((gate for gate in gates if gate.limit == "min"), key=_threshold, default=None)
    highest = min((gate for gate in gates if gate.limit == "max"), key=_threshold, default=None)
    if lowest and highest and lowest.threshold > highest.threshold:
        raise UsageError(
            f"{_both(lowest, highest)}: {metric} cannot be at least {lowest.threshold:g} "
            f"and at most {highest.threshold:g}.",
            hint="" if lowest.slices == highest.slices else "All rows are made of the slices.",
        )


def _threshold(gate: Gate) -> float:
    return gate.threshold


def _check_wish(metric: str, gates: Sequence[Gate]) -> None:
    # A gain was shown only where a loss is ruled out, so together the two can only be a misunderstanding.
    gains = [gate for gate in gates if gate.limit == "superiority"]
    losses = [gate for gate in gates if gate.limit in ("max_drop", "max_rise")]
    for gain in gains:
        for loss in losses:
            if (gain.slices, gain.guard) == (loss.slices, loss.guard):
                raise UsageError(
                    f"{_both(gain, loss)}: {metric} must be better than the baseline, and may lose "
                    f"{loss.shown} against it.",
                    hint='Keep one of the two, or give one level = "warn".',
                )


def _both(first: Gate, second: Gate) -> str:
    if first.source and first.source == second.source and first.line and second.line:
        lines = sorted({first.line, second.line})
        return f"{first.source}, line {' and '.join(map(str, lines))}"
    if not first.source and not second.source and first.name != second.name:
        return f"The gates {first.name!r} and {second.name!r}"
    if second.source or first.place == second.place:
        return " and ".join(dict.fromkeys((first.place, second.place)))
    return f"{first.place} and the gate {second.name!r}"


def digest_of(asked: GateFile) -> str:
    """The first 16 hex digits of the SHA-256 of what is asked; places and spellings do not matter."""
    gates = [
        {key: value for key, value in asdict(gate).items() if key not in ("shown", "source", "line")}
        for gate in asked.gates
    ]
    asks = {
        "gates": sorted({json.dumps(gate, sort_keys=True) for gate in gates}),
        "defaults": asdict(asked.defaults),
        "dataset": asdict(asked.dataset),
        "baseline": asked.baseline or "production",
    }
    return hashlib.sha256(json.dumps(asks, sort_keys=True).encode()).hexdigest()[:16]
