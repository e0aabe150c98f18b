"""Tables of a settings file as frozen dataclasses: unknown keys and impossible values are errors.

A table declares its fields with plain types and defaults; `setting` adds limits. Supported types are `str`,
`bool`, `int`, `float`, `Literal`, other tables, and `tuple[T, ...]`, `dict[str, T]`, `T | None` and
`T | Literal[...]` of them.
An `object` is taken as it is, for who checks it later.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass, replace
from functools import partial
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, listed, printable

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}

HIDDEN = {"hidden": True}  # metadata of a field that no file, variable or flag can set

T = TypeVar("T")
Where = tuple[str, ...]


def setting(
    default: Any,
    *,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    pattern: str = "",
    description: str = "",
) -> Any:
    """A field of a table with limits: above `gt`, at least `ge`, at most `le`, or text of a pattern."""
    limits = {"gt": gt, "ge": ge, "le": le, "pattern": pattern, "description": description}
    return field(default=default, metadata=limits)


def known_keys(table: type) -> list[str]:
    """The keys that a file may have in this table."""
    return [entry.name for entry in fields(table) if not entry.metadata.get("hidden")]


def read_table(table: type[T], values: Mapping[str, Any], *, source: str, where: Where = ()) -> T:
    """Build a table from the values of a file.

    Args:
        table: a frozen dataclass whose fields all have defaults.
        values: keys and values as TOML, JSON or text from the environment holds them.
        source: the file, for the message.
        where: the keys that lead to this table.

    Raises:
        UsageError: keys that are not known, or values that their fields do not take; it names them all.
    """
    entries = {entry.name: entry for entry in fields(table)}  # type: ignore[arg-type]  # by contract
    known = known_keys(table)

    def read(key: str) -> Any:
        place = (*where, key)
        if key not in known:
            raise UsageError(
                f"{source}: unknown key {printable('.'.join(place))!r}.", hint=did_you_mean(key, known)
            )
        value = _value(entries[key].type, values[key], source, place)
        _check_limits(value, entries[key].metadata, source, place)
        return value

    return table(**dict(zip(values, gathered(partial(read, key) for key in values), strict=True)))


def gathered(parts: Iterable[Callable[[], T]]) -> list[T]:
    """What all parts give, or one error about all that is wrong with them.

    Raises:
        UsageError: a part raised it; where several did, `problems` of its details has their sentences.
    """
    found: list[T] = []
    errors: list[UsageError] = []
    for part in parts:
        try:
            found.append(part())
        except UsageError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        problems = [line for error in errors for line in error.details.get("problems", (error.message,))]
        hint = next((error.hint for error in errors if error.hint), "")
        raise UsageError(f"{len(problems)} things are wrong:", hint=hint, problems=problems)
    return found


def changed(table: T, changes: Mapping[str, Any], *, source: str) -> T:
    """The same table with other values, which are checked like those of a file.

    Raises:
        UsageError: see `read_table`.
    """
    checked = read_table(type(table), changes, source=source)
    return replace(table, **{key: getattr(checked, key) for key in changes})  # type: ignore[type-var]


def _value(annotation: Any, value: Any, source: str, where: Where) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return _one_of(arguments, value, source, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _refused(value, "it is a list", source, where)
        places = ((*where, str(index)) for index in range(len(value)))
        return tuple(
            gathered(
                partial(_value, arguments[0], inner, source, place)
                for inner, place in zip(value, places, strict=True)
            )
        )
    if origin is Literal:
        if value in arguments:
            return value
        raise _refused(value, f"it is one of {listed([str(word) for word in arguments])}", source, where)
    if origin is dict or is_dataclass(annotation):
        return _table(annotation, value, source, where)
    return _SCALARS[annotation](value, source, where)


def _one_of(arguments: tuple[Any, ...], value: Any, source: str, where: Where) -> Any:
    """A value of an optional type, or of one that has words beside its numbers."""
    words = [word for kind in arguments if get_origin(kind) is Literal for word in get_args(kind)]
    if value is None or value in words:
        return value
    inner = next(kind for kind in arguments if kind is not type(None))
    try:
        return _value(inner, value, source, where)
    except UsageError as error:
        if not words:
            raise
        expected = f"it is a number or {listed([repr(word) for word in words])}"
        raise _refused(value, expected, source, where) from error


def _table(annotation: Any, value: Any, source: str, where: Where) -> Any:
    if get_origin(annotation) is not dict and isinstance(value, annotation):
        return value
    if not isinstance(value, Mapping):
        raise _refused(value, "it is a table", source, where)
    if is_dataclass(annotation):
        return read_table(annotation, value, source=source, where=where)  # type: ignore[arg-type]
    of = get_args(annotation)[1]
    inner = gathered(partial(_value, of, inner, source, (*where, key)) for key, inner in value.items())
    return dict(zip(value, inner, strict=True))


def _text(value: Any, source: str, where: Where) -> str:
    if isinstance(value, str):
        return value
    raise _refused(value, "it is text in quotes", source, where)


def _flag(value: Any, source: str, where: Where) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise _refused(value, "it is true or false", source, where)


def _whole(value: Any, source: str, where: Where) -> int:
    if not isinstance(value, bool):
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is not None and (isinstance(value, str) or number == value):
            return number
    raise _refused(value, "it is a whole number", source, where)


def _number(value: Any, source: str, where: Where) -> float:
    if not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass  # said below
    raise _refused(value, "it is a number", source, where)


def _anything(value: Any, _source: str, _where: Where) -> Any:
    return value


_SCALARS: dict[Any, Callable[[Any, str, Where], Any]] = {
    object: _anything,
    str: _text,
    bool: _flag,
    int: _whole,
    float: _number,
}


def _check_limits(value: Any, limits: Mapping[str, Any], source: str, where: Where) -> None:
    if value is None:
        return
    above, least, most = limits.get("gt"), limits.get("ge"), limits.get("le")
    # A word stands beside the numbers of its field, and NaN is not within any limit.
    within = isinstance(value, str) or (
        (above is None or value > above)
        and (least is None or value >= least)
        and (most is None or value <= most)
    )
    pattern = limits.get("pattern")
    if within and not (pattern and not re.fullmatch(pattern, value)):
        return
    parts = [
        *([] if above is None else [f"above {above:g}"]),
        *([] if least is None else [f"at least {least:g}"]),
        *([] if most is None else [f"at most {most:g}"]),
    ]
    meaning = f" ({limits['description']})" if limits.get("description") else ""
    if pattern:  # people read a description, where there is one
        parts.append("text" if meaning else f"of the form {pattern}")
    raise _refused(value, f"it is {' and '.join(parts)}{meaning}", source, where)


def _refused(value: Any, expected: str, source: str, where: Where) -> UsageError:
    shown = printable(repr(value), 80)
    return UsageError(f"{source}: {printable('.'.join(where))} = {shown} is not possible: {expected}.")
