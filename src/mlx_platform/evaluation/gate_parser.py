"""From a document that was read already, or a one-off expression, to gates."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.compare import Margin
from mlx_platform.evaluation.gate_lines import NO_LINES, Lines
from mlx_platform.evaluation.gate_values import (
    Place,
    check_keys,
    listed_of,
    number_of,
    share_of,
    table_of,
    text_of,
    whole_of,
    word_of,
)
from mlx_platform.evaluation.gates import (
    PAIR_METRICS,
    SYSTEM_METRICS,
    DatasetRules,
    Defaults,
    Gate,
    GateFile,
    Key,
    Limit,
    SliceRule,
    cell_text,
    check_contradictions,
    digest_of,
)
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import METRICS, NONE, PATTERNS, find_metric

LIMITS: tuple[Limit, ...] = ("min", "max", "max_drop", "max_rise", "max_ratio", "superiority")
FILE_KEYS = ("$schema", "version", "gates", "defaults", "dataset", "baseline", "guard")
GATE_KEYS = ("metric", *LIMITS, "abs_floor", "level", "slices", "guard")
SLICE_KEYS = ("by", "min_rows", "correct", "require")
GUARD_KEYS = ("baseline", "max_drop", "max_rise", "abs_floor", "level")
PINNED = "pinned"
_LOSSES = ("max_drop", "max_rise")
_EXPRESSION = re.compile(r"\s*([\w@.]+(?:\[[^\[\]]+\])?)\s*(>=|<=)\s*([^\s<>=]+)\s*")
_KEY_EXPRESSION = re.compile(r"\s*([\w@.]+(?:\[[^\[\]]+\])?)\s*:\s*(\w+)\s*=\s*([^\s<>=]+)\s*")
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(pp|abs|%rel)\s*")
_PLAIN = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_TEXTS = ("path", "id", "label", "weight", "group", "query", "positive", "sha256")
MOST_COLUMNS = 4  # that make one slice
_MOST_TIMES = 1000


def parse_gates(
    document: Any,
    *,
    source: str = "the gates",
    lines: Lines = NO_LINES,
    custom: Mapping[str, Metric] = NONE,
) -> GateFile:
    """Check a gate document that was read already.

    Args:
        document: the values.
        source: the file, for messages.
        lines: where its keys stand.
        custom: metrics of the project's own that gates may name.

    Raises:
        UsageError: names the file, the line, the gate and the key, with the closest known word.
    """
    place = Place(source, lines)
    table = table_of(document, place, "the file")
    check_keys(table, FILE_KEYS, place)
    text_of(table, "$schema", place)
    if table.get("version") != 1 or isinstance(table.get("version"), bool):
        raise UsageError(
            f"{place.at('version', said='version')}: version = 1 is missing.",
            hint="Write version = 1 in its first line.",
        )
    entries = table.get("gates", [])
    if not isinstance(entries, list):
        raise UsageError(
            f"{place.at('gates')}: gates is not a list.", hint="Write each gate as a [[gates]] table."
        )
    gates: list[Gate] = []
    for number, entry in enumerate(entries):
        gates += _parse_gate(entry, place.at("gates", number, said=f"gate {number + 1}"), custom)
    guard = text_of(table, "guard", place)
    asked = GateFile(
        gates=(*gates, *_watched(gates, guard)),
        defaults=_parse_defaults(table.get("defaults", {}), place.at("defaults")),
        dataset=_parse_dataset(table.get("dataset", {}), place.at("dataset")),
        baseline=text_of(table, "baseline", place),
        source=source,
    )
    check_contradictions(asked.gates)
    return replace(asked, digest=digest_of(asked))


def parse_expression(text: str, *, custom: Mapping[str, Metric] = NONE) -> Gate:
    """Read `accuracy>=0.9`, `log_loss<=0.4`, `accuracy:max_drop=1pp` or `accuracy:superiority=true`.

    Raises:
        UsageError: it is none of these.
    """
    place = Place(f"The gate {printable(text, 80)!r}")
    if match := _EXPRESSION.fullmatch(text):
        metric, sign, amount = match.groups()
        entry = {"metric": metric, "min" if sign == ">=" else "max": _amount(amount)}
    elif match := _KEY_EXPRESSION.fullmatch(text):
        metric, key, amount = match.groups()
        check_keys({key: amount}, LIMITS, place)
        entry = {"metric": metric, key: amount == "true" if key == "superiority" else _amount(amount)}
    else:
        raise UsageError(
            f"{place} cannot be read.", hint="Write accuracy>=0.9, log_loss<=0.4 or accuracy:max_drop=1pp."
        )
    return replace(_parse_gate(entry, place, custom)[0], source="")


def _amount(text: str) -> str | float:
    """A number, which an expression can only write as text; whatever else it is stays text."""
    if not _PLAIN.fullmatch(text):
        return text
    # A whole number stays one, so that the gate is shown as it was written.
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _watched(gates: Iterable[Gate], guard: str) -> tuple[Gate, ...]:
    """The same limits against the guard as warnings, where a gate has no guard of its own."""
    if not guard:
        return ()
    kept = {(gate.metric, gate.slices) for gate in gates if gate.guard}
    return tuple(
        replace(gate, guard=guard, warn=True)
        for gate in gates
        if gate.limit in _LOSSES and (gate.metric, gate.slices) not in kept
    )


# One gate


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a gate is about: the metric's name, whether it is a share, and which direction is better."""

    name: str
    share: bool
    higher: bool | None
    paired: bool = False
    system: bool = False


def _subject(name: Any, place: Place, custom: Mapping[str, Metric]) -> _Subject:
    known = (*METRICS, *custom, *PAIR_METRICS, *SYSTEM_METRICS, *PATTERNS)
    if name is None:
        raise UsageError(f"{place}: metric is missing.", hint=f"Known: {', '.join(known)}.")
    if not isinstance(name, str):
        raise UsageError(f"{place.at('metric')}: {printable(repr(name), 60)} is no metric's name.")
    if name in PAIR_METRICS:
        return _Subject(name, share=True, higher=PAIR_METRICS[name], paired=True)
    if name in SYSTEM_METRICS:
        return _Subject(name, share=False, higher=SYSTEM_METRICS[name], system=True)
    metric = find_metric(name, custom)
    if metric is None:
        raise UsageError(
            f"{place.at('metric')}: there is no metric {printable(name, 60)!r}.",
            hint=did_you_mean(name, known),
        )
    return _Subject(name, share=metric.unit == "share", higher=metric.higher_is_better)


def _parse_gate(entry: Any, place: Place, custom: Mapping[str, Metric]) -> list[Gate]:
    table = table_of(entry, place, "the gate")
    check_keys(table, GATE_KEYS, place)
    subject = _subject(table.get("metric"), place, custom)
    place = replace(place, words=(*place.words, printable(subject.name, 80))) if place.words else place
    asked = [limit for limit in LIMITS if limit in table]
    if table.get("superiority") is False:
        _check_direction(subject, "superiority", place.at("superiority"))
        asked.remove("superiority")
    if not asked:
        raise UsageError(f"{place}: {subject.name} has no limit.", hint=f"Add one of {', '.join(LIMITS)}.")
    if "abs_floor" in table and not set(_LOSSES) & set(asked):
        raise UsageError(f"{place.at('abs_floor')}: abs_floor belongs to max_drop or max_rise.")
    gates = [_one_limit(subject, limit, table, place) for limit in asked]
    slices = _parse_slices(table["slices"], subject, asked, place.at("slices")) if "slices" in table else None
    gates = [replace(gate, slices=slices, warn=_is_warning(table, place)) for gate in gates]
    if "guard" in table:
        guard = _parse_guard(table["guard"], subject, asked, place.at("guard"))
        gates.append(replace(guard, slices=slices))
    return gates


def _is_warning(table: Mapping[str, Any], place: Place) -> bool:
    level = table.get("level", "fail")
    if level not in ("fail", "warn"):
        raise UsageError(f'{place.at("level")}: level is "fail" or "warn", not {printable(repr(level), 40)}.')
    return bool(level == "warn")


def _one_limit(subject: _Subject, limit: Limit, table: Mapping[str, Any], place: Place) -> Gate:
    value, here = table[limit], place.at(limit)
    gate = Gate(subject.name, limit, shown=_shown(value), source=place.source, line=here.line)
    if limit in ("min", "max"):
        return replace(gate, threshold=_threshold(subject, value, here))
    if limit == "max_ratio":
        return replace(gate, threshold=_ratio(subject, value, here))
    _check_direction(subject, limit, here)
    if limit == "superiority":
        if value is not True:
            raise UsageError(f"{here}: superiority is true or false, not {printable(repr(value), 40)}.")
        return replace(gate, shown="")
    return replace(gate, margin=_margin(subject, limit, table, place))


def _check_direction(subject: _Subject, limit: str, place: Place) -> None:
    if subject.paired:
        raise UsageError(f"{place}: {subject.name} is limited by min or max only.")
    if subject.system:
        limits = "min or max" if subject.higher else "min, max or max_ratio"
        raise UsageError(f"{place}: {subject.name} is limited by {limits} only.")
    if subject.higher is None:
        raise UsageError(f"{place}: neither direction of {subject.name} is better.", hint="Use min and max.")
    right = "max_drop" if subject.higher else "max_rise"
    if limit not in ("superiority", right):
        direction = "higher" if subject.higher else "lower"
        raise UsageError(f"{place}: {direction} is better here.", hint=f"Write {right} instead of {limit}.")


def _parse_guard(value: Any, subject: _Subject, asked: Iterable[str], place: Place) -> Gate:
    table = table_of(value, place, "guard")
    check_keys(table, GUARD_KEYS, place)
    limit = next((key for key in _LOSSES if key in table), None)
    if limit is None or not set(_LOSSES) & set(asked):
        raise UsageError(
            f"{place}: a guard limits the loss in all, beside a gate that limits the loss of one step.",
            hint='Write guard = {baseline = "pinned", max_drop = "2pp"} in a gate with max_drop.',
        )
    both = [key for key in _LOSSES if key in table]
    if len(both) == 2:
        raise UsageError(f"{place}: a guard has one limit, max_drop or max_rise.")
    gate = _one_limit(subject, "max_drop" if limit == "max_drop" else "max_rise", table, place)
    baseline = text_of(table, "baseline", place) or PINNED
    return replace(gate, guard=baseline, warn=_is_warning(table, place))


def _parse_slices(value: Any, subject: _Subject, asked: Iterable[str], place: Place) -> SliceRule:
    table = table_of(value, place, "slices")
    check_keys(table, SLICE_KEYS, place)
    if subject.system or "max_ratio" in asked:
        raise UsageError(f"{place}: {subject.name} is about the whole package, which has no slices.")
    by = tuple(_columns(entry, place.at("by")) for entry in listed_of(table.get("by"), place.at("by")))
    repeated = [columns for columns in by if by.count(columns) > 1]
    if not by or repeated:
        problem = f"names {'+'.join(repeated[0])} twice" if repeated else "names no column"
        raise UsageError(f"{place.at('by')}: by {problem}.", hint='Write by = ["lang", ["lang", "device"]].')
    rule = SliceRule(
        by,
        min_rows=whole_of(table, "min_rows", place, default=50, least=1),
        correct=word_of(table, "correct", ("holm", "none"), place),
    )
    required = listed_of(table.get("require", []), place.at("require"))
    keys = tuple(_key(entry, rule, place.at("require", number)) for number, entry in enumerate(required))
    return replace(rule, require=keys)


def _columns(entry: Any, place: Place) -> tuple[str, ...]:
    columns = [entry] if isinstance(entry, str) else entry
    right = isinstance(columns, list) and all(isinstance(name, str) and name for name in columns)
    if not right or not 1 <= len(set(columns)) == len(columns) <= MOST_COLUMNS:
        raise UsageError(
            f"{place}: {printable(repr(entry), 60)} is neither a column nor a list of up to "
            f"{MOST_COLUMNS} columns.",
            hint='Write by = ["lang", ["lang", "device"]].',
        )
    return tuple(columns)


def _example(entry: Any) -> str:
    return json.dumps(printable(str(entry), 60) if isinstance(entry, str | int | float) else "...")


def _key(entry: Any, rule: SliceRule, place: Place) -> Key:
    if not isinstance(entry, dict):
        example = ", ".join(f"{printable(column, 60)} = {_example(entry)}" for column in rule.by[0])
        raise UsageError(
            f"{place}: {printable(repr(entry), 60)} does not say which column has it.",
            hint=f"Write require = [{{{example}}}].",
        )
    table = table_of(entry, place, "the slice")
    columns = next((by for by in rule.by if set(by) == set(table)), None)
    if columns is None:
        raise UsageError(
            f"{place}: no slices are made by {printable('+'.join(table), 80) or 'nothing'}.",
            hint=f"They are made by {rule.shown}.",
        )
    for column in columns:
        if not isinstance(table[column], str | int | float):
            raise UsageError(f"{place}: {printable(column, 60)} is a text or a number.")
    return tuple((column, cell_text(table[column])) for column in columns)


# Numbers


def _threshold(subject: _Subject, value: Any, place: Place) -> float:
    number = number_of(value, place, percent=subject.share)
    if subject.share and not 0 <= number <= 1:
        raise UsageError(
            f"{place}: {subject.name} lies between 0 and 1, so {number:g} cannot be its limit.",
            hint="Write 0.9 or 90%.",
        )
    return number


def _ratio(subject: _Subject, value: Any, place: Place) -> float:
    if not subject.system or subject.higher:
        hint = "Write max_drop or max_rise with a unit, such as 1pp or 2%rel."
        hint = "Limit latency_mean_ms instead." if subject.system else hint
        raise UsageError(f"{place}: max_ratio limits latencies and sizes, not {subject.name}.", hint=hint)
    number = number_of(value, place, percent=True)
    if not 0 < number < _MOST_TIMES:
        raise UsageError(
            f"{place}: {number:g} cannot be a limit of candidate over baseline.",
            hint="Write 1.1 or 110% for a tenth more.",
        )
    return number


def _shown(value: Any) -> str:
    return printable(str(value).strip(), 40)


def _margin(subject: _Subject, limit: str, table: Mapping[str, Any], place: Place) -> Margin:
    value, here = table[limit], place.at(limit)
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise UsageError(
            f"{here}: {limit} = {printable(repr(value), 40)} has no unit.",
            hint="Write 1pp (percentage points), 0.01abs or 1%rel.",
        )
    amount, unit = float(match[1]), match[2]
    if unit == "pp" and not subject.share:
        raise UsageError(f"{here}: {subject.name} has no percentage points.", hint="Write 0.01abs or 1%rel.")
    if unit != "abs":
        amount /= 100
    if amount <= 0:
        raise UsageError(
            f"{here}: {limit} = {value} can never be shown to hold.",
            hint="Allow a small loss, or demand a gain with superiority = true.",
        )
    # A rise has no natural end, while nothing falls by more than all of it.
    bounded = subject.share if unit != "%rel" else subject.higher
    if not math.isfinite(amount) or (bounded and amount >= 1):
        raise UsageError(f"{here}: {limit} = {printable(value, 40)} allows every loss.")
    floor = number_of(table.get("abs_floor", 0), place.at("abs_floor"))
    if floor < 0:
        raise UsageError(f"{place.at('abs_floor')}: abs_floor is negative.")
    return Margin(amount, relative=unit == "%rel", floor=floor)


# The rest of the file


def _parse_defaults(value: Any, place: Place) -> Defaults:
    table = table_of(value, place, "defaults")
    check_keys(table, [entry.name for entry in fields(Defaults)], place)
    confidence = number_of(table.get("confidence", 0.95), place.at("confidence"))
    if not 0.5 < confidence < 1:
        raise UsageError(
            f"{place.at('confidence')}: confidence lies between 0.5 and 1, and is {confidence:g}."
        )
    return Defaults(
        confidence=confidence,
        seed=whole_of(table, "seed", place),
        on_inconclusive=word_of(table, "on_inconclusive", ("undecided", "fail", "error"), place),
        on_missing=word_of(table, "on_missing", ("undecided", "skip", "error"), place),
    )


def _parse_dataset(value: Any, place: Place) -> DatasetRules:
    table = table_of(value, place, "dataset")
    check_keys(table, [entry.name for entry in fields(DatasetRules)], place)
    others = listed_of(table.get("disjoint_from", []), place.at("disjoint_from"))
    if not all(isinstance(other, str) and other for other in others):
        raise UsageError(f"{place.at('disjoint_from')}: disjoint_from is not a list of file names.")
    most = table.get("max_overlap")
    return DatasetRules(
        **{key: text_of(table, key, place) for key in _TEXTS},
        min_rows=whole_of(table, "min_rows", place),
        disjoint_from=tuple(others),
        max_overlap=None if most is None else share_of(most, place.at("max_overlap")),
    )
