"""The JSON Schema of gate files, for editors and other tools.

It is made from the same tables that the parser reads. What a schema cannot say (two gates that contradict
each other) only the parser refuses.
"""

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from mlx_platform.evaluation.gate_parser import MOST_COLUMNS
from mlx_platform.evaluation.gates import PAIR_METRICS, SYSTEM_METRICS
from mlx_platform.evaluation.metric import Metric
from mlx_platform.evaluation.metrics import METRICS, NONE

FILE_NAME = "gates.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ANY = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
_BELOW_100 = r"(0*[0-9]{1,2}(\.[0-9]*)?|\.[0-9]+)"
_BELOW_1 = r"(0+(\.[0-9]*)?|\.[0-9]+)"
_NOT_0 = r"(?!0*\.?0*\s*[pa%])"
_FORMS: Mapping[str, tuple[bool, bool]] = {
    r"^(precision|recall|f1)\[[\s\S]+\]$": (True, True),
    r"^(ndcg|recall)@[1-9][0-9]{0,5}$": (True, True),
    r"^pinball\[0?\.(?!0+\])[0-9]+\]$": (False, False),
}
"""Names that carry a class, a cut or a quantile: whether these are shares, and whether higher is better."""
Schema = dict[str, Any]


def shipped_schema() -> str:
    """The schema of this version, as the package has it: the project's own metrics are not in it."""
    return files("mlx_platform.evaluation").joinpath(FILE_NAME).read_text(encoding="utf-8")


def schema_text() -> str:
    """The schema as it is shipped."""
    return json.dumps(gate_schema(), indent=2, ensure_ascii=False) + "\n"


def gate_schema(custom: Mapping[str, Metric] = NONE) -> Schema:
    """The schema, where metrics of the project's own may be named as well."""
    metrics = {**METRICS, **custom}
    return {
        "$schema": _DIALECT,
        "title": "Gates of mlx eval",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {
            "$schema": {"type": "string"},
            "version": {"const": 1, "type": "integer"},
            "baseline": _said("an alias, version:3, pinned, none, or a reference"),
            "guard": _said("against what small losses are added up, usually pinned"),
            "defaults": _defaults(),
            "dataset": _dataset(),
            "gates": {"type": "array", "items": {"$ref": "#/$defs/gate"}},
        },
        "$defs": {
            "share": _share(),
            "slices": _slices(),
            "gate": _gate(metrics),
        },
    }


def _said(about: str) -> Schema:
    return {"type": "string", "description": about}


def _share() -> Schema:
    """From 0 to 1, or from 0% to 100%."""
    written = {"type": "string", "pattern": rf"^({_BELOW_100}|0*100(\.0*)?)%$"}
    return {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, written]}


def _tolerated(*, share: bool, drop: bool) -> Schema:
    """A tolerated loss with its unit: more than nothing, less than everything."""
    kinds = [rf"{_BELOW_1 if share else _ANY}\s*abs", rf"{_BELOW_100 if drop else _ANY}\s*%rel"]
    if share:
        kinds.append(rf"{_BELOW_100}\s*pp")
    return {
        "type": "string",
        "pattern": rf"^\s*{_NOT_0}({'|'.join(kinds)})\s*$",
        "description": f"a loss with its unit: {'1pp, ' if share else ''}0.01abs or 1%rel",
    }


def _guard(loss: str, tolerated: Schema) -> Schema:
    return {
        "type": "object",
        "required": [loss],
        "additionalProperties": False,
        "properties": {
            "baseline": _said("pinned, the default, or whatever a baseline may be"),
            loss: tolerated,
            "abs_floor": {"type": "number", "minimum": 0},
            "level": {"enum": ["fail", "warn"]},
        },
    }


def _slices() -> Schema:
    column = {"type": "string", "minLength": 1}
    several = {
        "type": "array",
        "items": column,
        "minItems": 1,
        "maxItems": MOST_COLUMNS,
        "uniqueItems": True,
    }
    either = {"anyOf": [column, several]}
    return {
        "type": "object",
        "required": ["by"],
        "additionalProperties": False,
        "properties": {
            "by": {"anyOf": [column, {"type": "array", "items": either, "minItems": 1, "uniqueItems": True}]},
            "min_rows": _whole(1),
            "correct": {"enum": ["holm", "none"]},
            "require": {
                "type": "array",
                "items": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": {"type": ["string", "number", "boolean"]},
                },
            },
        },
    }


def _defaults() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "confidence": {"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1},
            "seed": _whole(0),
            "on_inconclusive": {"enum": ["undecided", "fail", "error"]},
            "on_missing": {"enum": ["undecided", "skip", "error"]},
        },
    }


def _whole(least: int) -> Schema:
    return {"type": "integer", "minimum": least, "exclusiveMaximum": 2**63}


def _dataset() -> Schema:
    texts = {
        "path": "the name of the data file",
        "id": "the column that names rows",
        "label": "the column of the truth",
        "weight": "the column of what each row counts",
        "group": "the column of the clusters that rows belong to",
        "query": "the column of the queries that a ranking is about",
        "positive": "the label that precision and recall are about, of two",
        "sha256": "of the data file",
    }
    name = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **{key: _said(about) for key, about in texts.items()},
            "min_rows": _whole(0),
            "disjoint_from": {"anyOf": [name, {"type": "array", "items": name}]},
            "max_overlap": {"$ref": "#/$defs/share"},
        },
    }


def _gate(metrics: Mapping[str, Metric]) -> Schema:
    """One gate. Which limits it may have depends on its metric, so there is an alternative for each sort."""
    found = [
        _sort(_named(metrics.values(), share=True, higher=True), share=True, loss="max_drop"),
        _sort(_named(metrics.values(), share=True, higher=False), share=True, loss="max_rise"),
        _sort(_named(metrics.values(), share=False, higher=True), loss="max_drop"),
        _sort(_named(metrics.values(), share=False, higher=False), loss="max_rise"),
        _sort(_named(metrics.values(), share=False, higher=None)),
        _sort({"enum": list(PAIR_METRICS)}, share=True),
        _sort({"enum": [name for name, higher in SYSTEM_METRICS.items() if higher]}, slices=False),
        _sort(
            {"enum": [name for name, better in SYSTEM_METRICS.items() if not better]},
            ratio=True,
            slices=False,
        ),
    ]
    return {"type": "object", "required": ["metric"], "anyOf": found}


def _system(*, higher: bool) -> list[str]:
    return [name for name, better in SYSTEM_METRICS.items() if better is higher]


def _named(metrics: Iterable[Metric], *, share: bool, higher: bool | None) -> Schema:
    """The metrics of one sort: by name, and by the forms of those whose name carries a class or a number."""
    fits = (one for one in metrics if (one.unit == "share") is share and one.higher_is_better is higher)
    names = {"enum": [metric.name for metric in fits]}
    forms = [pattern for pattern, sort in _FORMS.items() if sort == (share, higher)]
    return {"anyOf": [names, *({"pattern": pattern} for pattern in forms)]} if forms else names


def _sort(
    metric: Schema, *, share: bool = False, loss: str = "", ratio: bool = False, slices: bool = True
) -> Schema:
    """Gates on one sort of metrics.

    Args:
        metric: which.
        share: they lie between 0 and 1.
        loss: the key of a tolerated loss; empty where neither direction is better.
        ratio: they are compared with the baseline as a ratio.
        slices: they are about rows.
    """
    number: Schema = {"$ref": "#/$defs/share"} if share else {"type": "number"}
    level = {"enum": ["fail", "warn"]}
    properties: Schema = {"metric": {"type": "string"} | metric, "min": number, "max": number, "level": level}
    limits: list[Schema] = [{"required": ["min"]}, {"required": ["max"]}]
    if loss:
        tolerated = _tolerated(share=share, drop=loss == "max_drop")
        properties |= {
            loss: tolerated,
            "superiority": {"type": "boolean"},
            "abs_floor": {"type": "number", "minimum": 0},
            "guard": _guard(loss, tolerated),
        }
        wished = {"required": ["superiority"], "properties": {"superiority": {"const": True}}}
        limits += [{"required": [loss]}, wished]
    if ratio:
        properties["max_ratio"] = _ratio()
        limits.append({"required": ["max_ratio"]})
    if slices:
        properties["slices"] = {"$ref": "#/$defs/slices"}
    needs = {"dependentRequired": {"abs_floor": [loss], "guard": [loss]}} if loss else {}
    return {"additionalProperties": False, "properties": properties, "anyOf": limits, **needs}


def _ratio() -> Schema:
    """Candidate over baseline, as a number or in percent."""
    written = {"type": "string", "pattern": r"^(?!0*\.?0*%)(0*[0-9]{1,5}(\.[0-9]*)?|\.[0-9]+)%$"}
    return {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1000}, written]}
