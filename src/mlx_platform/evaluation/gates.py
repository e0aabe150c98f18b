"""Gates, as a file or a one-off expression asks them: what a model must reach, how much it may lose."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.metrics import METRICS, metric_of

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

_FILE_KEYS = ("version", "gates", "defaults", "dataset", "baseline")
_GATE_KEYS = ("metric", "min", "max", "max_drop", "max_rise", "superiority", "abs_floor", "level")
_LIMITS: tuple[Limit, ...] = ("min", "max", "max_drop", "max_rise", "superiority")
_EXPRESSION = re.compile(r"\s*(\w+)\s*(>=|<=)\s*([^\s<>=]+)\s*")
_KEY_EXPRESSION = re.compile(r"\s*(\w+)\s*:\s*(\w+)\s*=\s*([^\s<>=]+)\s*")
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(pp|abs|%rel)")


Key = tuple[tuple[str, str], ...]
"""A slice: columns with the value that the slice's rows have in each, as text."""


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


@dataclass(frozen=True, slots=True)
class Gate:
    """One question: a metric with one limit.

    Attributes:
        threshold: of `min`, `max` and `max_ratio`.
        margin: of `max_drop` and `max_rise`.
        shown: the limit as it was written, such as `1pp`.
        warn: the answer is reported and never decides.
        slices: the gate asks about each slice of the rows rather than about all rows together.
        guard: what it compares with in place of the file's baseline, such as `pinned`; empty for the baseline.
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
    source: str = ""
    line: int = 0

    @property
    def bound(self) -> str:
        """The limit for people: `>= 0.9`, `max_drop 1pp`, `superiority`."""
        if self.limit == "min":
            return f">= {self.shown}"
        if self.limit == "max":
            return f"<= {self.shown}"
        return f"{self.limit} {self.shown}".rstrip()

    @property
    def name(self) -> str:
        return f"{self.metric} {self.bound}"

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


def parse_gates(document: Any, *, source: str = "the gates") -> GateFile:
    """Check a gate document that was read already.

    Raises:
        UsageError: names the file, the gate and the key, with the closest known word.
    """
    table = _table(document, source, "the file")
    _check_keys(table, _FILE_KEYS, source)
    if table.get("version") != 1 or isinstance(table.get("version"), bool):
        raise UsageError(f"{source}: version = 1 is missing.", hint="Write version = 1 in its first line.")
    entries = table.get("gates", [])
    if not isinstance(entries, list):
        raise UsageError(f"{source}: gates is not a list.", hint="Write each gate as a [[gates]] table.")
    gates: list[Gate] = []
    for number, entry in enumerate(entries, start=1):
        where = f"{source}, gate {number}"
        gates += _parse_gate(_table(entry, where, "the gate"), where)
    check_contradictions(gates, source)
    baseline = table.get("baseline", "")
    if not isinstance(baseline, str):
        raise UsageError(f"{source}: baseline is not a text.", hint='Write baseline = "production".')
    asked = GateFile(
        gates=tuple(gates),
        defaults=_parse_defaults(table.get("defaults", {}), source),
        dataset=_parse_dataset(table.get("dataset", {}), source),
        baseline=baseline,
        source=source,
    )
    return replace(asked, digest=_digest(asked))


def parse_expression(text: str) -> Gate:
    """Read `accuracy>=0.9`, `log_loss<=0.4`, `accuracy:max_drop=1pp` or `accuracy:superiority=true`.

    Raises:
        UsageError: it is none of these.
    """
    where = f"The gate {printable(text, 80)!r}"
    if match := _EXPRESSION.fullmatch(text):
        metric, sign, amount = match.groups()
        entry = {"metric": metric, "min" if sign == ">=" else "max": amount}
    elif match := _KEY_EXPRESSION.fullmatch(text):
        metric, key, amount = match.groups()
        _check_keys({key: amount}, _LIMITS, where)
        entry = {"metric": metric, key: amount == "true" if key == "superiority" else amount}
    else:
        raise UsageError(
            f"{where} cannot be read.", hint="Write accuracy>=0.9, log_loss<=0.4 or accuracy:max_drop=1pp."
        )
    return _parse_gate(entry, where)[0]


def check_task(gates: Iterable[Gate], task: str) -> None:
    """Refuse gates on metrics that the task does not have.

    Raises:
        UsageError: names the metric and those that the task has.
    """
    for gate in gates:
        if gate.metric in METRICS:
            metric_of(gate.metric, task)
        elif gate.metric in PAIR_METRICS and task != "classification":
            raise UsageError(
                f"The metric {gate.metric!r} belongs to classification, and this is a model for {task}."
            )


def _digest(asked: GateFile) -> str:
    """The first 16 hex digits of the SHA-256 of what is asked."""
    gates = [{key: value for key, value in asdict(gate).items() if key != "shown"} for gate in asked.gates]
    asks = {
        "gates": sorted({json.dumps(gate, sort_keys=True) for gate in gates}),
        "defaults": asdict(asked.defaults),
        "dataset": asdict(asked.dataset),
        "baseline": asked.baseline or "production",
    }
    return hashlib.sha256(json.dumps(asks, sort_keys=True).encode()).hexdigest()[:16]


def _table(value: Any, where: str, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{where}: {what} is not a table of named values.")
    return value


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UsageError(f"{where}: unknown key {printable(key, 60)!r}.", hint=did_you_mean(key, known))


def _parse_gate(entry: Mapping[str, Any], where: str) -> list[Gate]:
    _check_keys(entry, _GATE_KEYS, where)
    metric = entry.get("metric")
    known = (*METRICS, *PAIR_METRICS, *SYSTEM_METRICS)
    if not isinstance(metric, str):
        raise UsageError(f"{where}: metric is missing.", hint=f"Known: {', '.join(known)}.")
    if metric not in known:
        raise UsageError(
            f"{where}: there is no metric {printable(metric, 60)!r}.", hint=did_you_mean(metric, known)
        )
    level = entry.get("level", "fail")
    if level not in ("fail", "warn"):
        raise UsageError(f'{where}: level is "fail" or "warn", not {printable(repr(level), 40)}.')
    limits = [limit for limit in _LIMITS if limit in entry and entry[limit] is not False]
    if not limits:
        raise UsageError(f"{where}: {metric} has no limit.", hint=f"Add one of {', '.join(_LIMITS)}.")
    if "abs_floor" in entry and not {"max_drop", "max_rise"} & set(limits):
        raise UsageError(f"{where}: abs_floor belongs to max_drop or max_rise.")
    gates = [_one_limit(metric, limit, entry, f"{where}, {metric}") for limit in limits]
    return [replace(gate, warn=level == "warn") for gate in gates]


def _one_limit(metric: str, limit: Limit, entry: Mapping[str, Any], where: str) -> Gate:
    value = entry[limit]
    if limit in ("min", "max"):
        return Gate(metric, limit, threshold=_threshold(metric, value, where), shown=_shown(value))
    if metric not in METRICS:
        raise UsageError(f"{where}: {metric} is limited by min or max only.")
    higher = METRICS[metric].higher_is_better
    if higher is None:
        raise UsageError(f"{where}: neither direction of {metric} is better.", hint="Use min and max.")
    if limit == "superiority":
        if value is not True:
            raise UsageError(f"{where}: superiority is true or false, not {printable(repr(value), 40)}.")
        return Gate(metric, limit)
    right = "max_drop" if higher else "max_rise"
    if limit != right:
        direction = "higher" if higher else "lower"
        raise UsageError(f"{where}: {direction} is better here.", hint=f"Write {right} instead of {limit}.")
    return Gate(metric, limit, margin=_margin(metric, limit, entry, where), shown=_shown(value))


def _is_share(metric: str) -> bool:
    return metric in PAIR_METRICS or (metric in METRICS and METRICS[metric].unit == "share")


def _threshold(metric: str, value: Any, where: str) -> float:
    number = _number(value, where)
    if isinstance(value, str) and value.endswith("%"):
        if not _is_share(metric):
            raise UsageError(f"{where}: {metric} is no share, so {printable(value, 40)!r} has no meaning.")
        number /= 100
    if _is_share(metric) and not 0 <= number <= 1:
        raise UsageError(
            f"{where}: {metric} lies between 0 and 1, so {number:g} cannot be its limit.",
            hint="Write 0.9 or 90%.",
        )
    return number


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(_unpercented(value))
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{where}: {printable(repr(value), 60)} is no finite number.")
    return number


def _unpercented(value: Any) -> Any:
    return value.removesuffix("%") if isinstance(value, str) else value


def _shown(value: Any) -> str:
    return value.strip() if isinstance(value, str) else str(value)


def _margin(metric: str, limit: str, entry: Mapping[str, Any], where: str) -> Margin:
    value = entry[limit]
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise UsageError(
            f"{where}: {limit} = {printable(repr(value), 40)} has no unit, or none that is known.",
            hint="Write 1pp (percentage points), 0.01abs (in the metric's unit) or 1%rel (of the baseline).",
        )
    amount, unit = float(match[1]), match[2]
    if unit == "pp" and not _is_share(metric):
        raise UsageError(
            f"{where}: {metric} is no share, so it has no percentage points.", hint="Write 0.01abs or 1%rel."
        )
    if unit != "abs":
        amount /= 100
    if amount <= 0:
        raise UsageError(
            f"{where}: {limit} = {value} can never be shown to hold.",
            hint="Allow a small loss, or demand a gain with superiority = true.",
        )
    if unit != "%rel" and _is_share(metric) and amount >= 1:
        raise UsageError(f"{where}: {limit} = {value} allows every loss.")
    floor = _number(entry.get("abs_floor", 0), f"{where}, abs_floor")
    if floor < 0:
        raise UsageError(f"{where}: abs_floor is negative.")
    return Margin(amount, relative=unit == "%rel", floor=floor)


def check_contradictions(gates: Iterable[Gate], where: str) -> None:
    """Refuse limits, from whatever places, that no model can meet together.

    Raises:
        UsageError: names the metric and both limits.
    """
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    for gate in gates:
        if gate.limit == "min":
            lowest[gate.metric] = max(gate.threshold, lowest.get(gate.metric, -math.inf))
        elif gate.limit == "max":
            highest[gate.metric] = min(gate.threshold, highest.get(gate.metric, math.inf))
    for metric, least in lowest.items():
        most = highest.get(metric, math.inf)
        if least > most:
            raise UsageError(f"{where}: {metric} cannot be at least {least:g} and at most {most:g}.")


def _parse_defaults(value: Any, source: str) -> Defaults:
    table = _table(value, source, "defaults")
    where = f"{source}, defaults"
    _check_keys(table, [entry.name for entry in fields(Defaults)], where)
    confidence = _number(table.get("confidence", 0.95), f"{where}, confidence")
    if not 0.5 < confidence < 1:
        raise UsageError(f"{where}: confidence lies between 0.5 and 1, and is {confidence:g}.")
    return Defaults(
        confidence=confidence,
        seed=_whole(table, "seed", where),
        on_inconclusive=_word(table, "on_inconclusive", ("undecided", "fail", "error"), where),
        on_missing=_word(table, "on_missing", ("undecided", "skip", "error"), where),
    )


def _parse_dataset(value: Any, source: str) -> DatasetRules:
    table = _table(value, source, "dataset")
    where = f"{source}, dataset"
    _check_keys(table, [entry.name for entry in fields(DatasetRules)], where)
    keys = ("path", "id", "label", "weight", "group", "query", "positive", "sha256")
    for key in keys:
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{where}: {key} is not a text.")
    others = table.get("disjoint_from", [])
    others = [others] if isinstance(others, str) else others
    if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
        raise UsageError(f"{where}: disjoint_from is not a list of file names.")
    most = table.get("max_overlap")
    return DatasetRules(
        **{key: table.get(key, "") for key in keys},
        min_rows=_whole(table, "min_rows", where),
        disjoint_from=tuple(others),
        max_overlap=None if most is None else _share(most, f"{where}, max_overlap"),
    )


def _share(value: Any, where: str) -> float:
    number = _number(value, where)
    if isinstance(value, str) and value.endswith("%"):
        number /= 100
    if not 0 <= number <= 1:
        raise UsageError(f"{where}: a share lies between 0 and 1, and this is {number:g}.")
    return number


def _whole(table: Mapping[str, Any], key: str, where: str) -> int:
    value = table.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise UsageError(f"{where}: {key} is a whole number from 0, not {printable(repr(value), 40)}.")
    return value


def _word(table: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> Any:
    value = table.get(key, allowed[0])
    if value not in allowed:
        raise UsageError(f"{where}: {key} is one of {', '.join(allowed)}, not {printable(repr(value), 40)}.")
    return value
