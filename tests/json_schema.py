"""The part of JSON Schema 2020-12 that the schema of gate files uses; an unknown keyword is an error."""

import re
from typing import Any

_TYPES = {
    "string": str,
    "object": dict,
    "array": list,
    "boolean": bool,
    "number": (int, float),
    "integer": (int, float),
}
_NO_RULES = {"$schema", "$defs", "title", "description"}


def valid(value: Any, schema: Any, root: Any) -> bool:
    """Whether a document is what the schema says."""
    return all(_RULES[key](value, rule, schema, root) for key, rule in schema.items() if key not in _NO_RULES)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind]) and (kind != "integer" or float(value).is_integer())


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) is isinstance(other, bool) and value == other


def _ref(value, rule, _schema, root):
    target = root
    for part in rule.removeprefix("#/").split("/"):
        target = target[part]
    return valid(value, target, root)


def _type(value, rule, _schema, _root):
    return any(_is(value, kind) for kind in ([rule] if isinstance(rule, str) else rule))


def _properties(value, rule, _schema, root):
    if not isinstance(value, dict):
        return True
    return all(valid(value[key], inner, root) for key, inner in rule.items() if key in value)


def _additional(value, rule, schema, root):
    if not isinstance(value, dict):
        return True
    others = [inner for key, inner in value.items() if key not in schema.get("properties", {})]
    return not others if rule is False else all(valid(inner, rule, root) for inner in others)


def _items(value, rule, _schema, root):
    return not isinstance(value, list) or all(valid(inner, rule, root) for inner in value)


def _unique(value, rule, _schema, _root):
    return not (rule and isinstance(value, list)) or all(
        not _same(one, other) for place, one in enumerate(value) for other in value[:place]
    )


def _dependent(value, rule, _schema, _root):
    if not isinstance(value, dict):
        return True
    return all(needed in value for key, needs in rule.items() if key in value for needed in needs)


def _compared(kind, compare):
    def check(value, rule, _schema, _root):
        return not _is(value, kind) or compare(value, rule)

    return check


_RULES = {
    "$ref": _ref,
    "type": _type,
    "const": lambda value, rule, _schema, _root: _same(value, rule),
    "enum": lambda value, rule, _schema, _root: any(_same(value, one) for one in rule),
    "anyOf": lambda value, rule, _schema, root: any(valid(value, one, root) for one in rule),
    "required": lambda value, rule, _schema, _root: not isinstance(value, dict) or set(rule) <= set(value),
    "properties": _properties,
    "additionalProperties": _additional,
    "dependentRequired": _dependent,
    "items": _items,
    "uniqueItems": _unique,
    "pattern": _compared("string", lambda value, rule: re.search(rule, value) is not None),
    "minLength": _compared("string", lambda value, rule: len(value) >= rule),
    "minItems": _compared("array", lambda value, rule: len(value) >= rule),
    "maxItems": _compared("array", lambda value, rule: len(value) <= rule),
    "minProperties": _compared("object", lambda value, rule: len(value) >= rule),
    "minimum": _compared("number", lambda value, rule: value >= rule),
    "maximum": _compared("number", lambda value, rule: value <= rule),
    "exclusiveMinimum": _compared("number", lambda value, rule: value > rule),
    "exclusiveMaximum": _compared("number", lambda value, rule: value < rule),
}
