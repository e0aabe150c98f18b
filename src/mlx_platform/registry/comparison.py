"""What `=`, `<`, `contains` and their like mean for each kind of field."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from mlx_platform.core.clock import parse_time
from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.fields import Field, Value, number_of

Test = Callable[[Value], bool | None]
"""Answers for a value that is there; None where the two cannot be compared."""

_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = ("=", "!=", *_ORDERS, "contains", "startswith")
_SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FLAGS = {"yes": True, "true": True, "no": False, "false": False}
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def operators_of(field: Field) -> tuple[str, ...]:
    """The operators that a field takes; every field takes `in` as well."""
    if field.kind == "flag":
        return ("=", "!=")
    if field.kind == "set":
        return ("=", "!=", "contains", "startswith")
    if field.kind in {"number", "time"}:
        return ("=", "!=", *_ORDERS)
    return OPERATORS


def test_of(field: Field, name: str, text: str, *, quoted: bool, now: datetime) -> Test:
    """The comparison of a field with a value that was written down.

    Args:
        field: what is compared.
        name: one of the field's operators.
        text: the value, without quotes.
        quoted: whether it stood in quotes: then a parameter is compared as text also where it is a number.
        now: what ages are counted back from.

    Raises:
        UsageError: the field has no such values.
    """
    match field.kind:
        case "number":
            return _compare(name, _number(field, text))
        case "time":
            return _compare_times(name, *_span(text, now))
        case "flag":
            if text.lower() not in _FLAGS:
                raise UsageError(f"{field.text} is yes or no, not {printable(text, 40)!r}.")
            return _compare(name, _FLAGS[text.lower()])
        case "set":
            inner = _compare("=" if name in {"!=", "contains"} else name, text)
            return lambda value: _among(value, inner) is (name != "!=")
        case "any" if not quoted and name not in {"contains", "startswith"}:
            return _compare_any(name, text)
        case _:
            return _compare(name, text)


def _compare(name: str, wanted: float | str | bool) -> Test:
    match name:
        case "=":
            return lambda value: value == wanted
        case "!=":
            return lambda value: value != wanted
        case "contains":
            return lambda value: str(wanted) in str(value)
        case "startswith":
            return lambda value: str(value).startswith(str(wanted))
        case _:
            order = _ORDERS[name]
            return lambda value: order(value, wanted)


def _compare_any(name: str, text: str) -> Test:
    number = number_of(text)
    if number is None:
        return _compare(name, text)
    numeric = _compare(name, number)

    def test(value: Value) -> bool | None:
        found = number_of(str(value))
        if found is not None:
            return numeric(found)
        # Words and numbers are different, but neither comes before the other.
        return {"=": False, "!=": True}.get(name)

    return test


def _compare_times(name: str, start: datetime, end: datetime) -> Test:
    def test(value: Value) -> bool | None:
        if not isinstance(value, datetime):
            return None
        inside = value == start or start <= value < end
        before, after = value < start, not inside and value >= end
        answers = {
            "=": inside,
            "!=": not inside,
            "<": before,
            "<=": before or inside,
            ">": after,
            ">=": after or inside,
        }
        return answers[name]

    return test


def _among(value: Value, test: Test) -> bool:
    members: Sequence[str] = value if isinstance(value, tuple) else ()
    return any(test(member) for member in members)


def _number(field: Field, text: str) -> float:
    number = number_of(text)
    if number is not None:
        return number
    match = re.fullmatch(r"([0-9.]+)([kMGT]?B)", text) if field.root == "size" else None
    size = number_of(match[1]) if match else None
    if match and size is not None:
        return size * _SIZES[match[2]]
    hint = "Write 500kB, 20MB or 1.5GB." if field.root == "size" else ""
    raise UsageError(f"{field.text} is a number, and {printable(text, 40)!r} is none.", hint=hint)


def _span(text: str, now: datetime) -> tuple[datetime, datetime]:
    """A moment, or the whole of a day in UTC."""
    if not _DAY.fullmatch(text):
        moment = parse_time(text, now=now)
        return moment, moment
    try:
        start = datetime.fromisoformat(text).replace(tzinfo=UTC)
        return start, start + timedelta(days=1)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is no day of the calendar.") from error
