"""Single fields of a version, for scripts: `mlx show REF --fields digest,metrics.f1`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.registry.fields import FLAGS, OF_ALIASES, Known, Value, parse_field, suggestion
from mlx_platform.registry.version import Version
from mlx_platform.workflows.describe import value_text

_UNTOLD = {*OF_ALIASES, "history"}


def selected_fields(version: Version, document: Mapping[str, Any], names: Sequence[str]) -> Result:
    """The values of some fields, one a line in the order of their names.

    Args:
        version: whose fields they are.
        document: everything about it, JSON-ready.
        names: keys of the document, or fields as in `mlx list --where`.

    Raises:
        NotFoundError: the version has no such metric, parameter, tag or finding.
        UsageError: no such field.
    """
    found = {name: _value(version, document, name.strip()) for name in names}
    lines = tuple(_text(value) for value in found.values())
    return Result(
        command="show",
        data={
            name: value_text(value) if isinstance(value, tuple) else value for name, value in found.items()
        },
        report=Report(title=version.ref, summary=lines[0], lines=lines),
    )


def _value(version: Version, document: Mapping[str, Any], name: str) -> Any:
    if name in _UNTOLD and version.doubt:
        raise IntegrityError(version.doubt, hint=f"See: mlx doctor registry {version.name}")
    if name in document and name not in FLAGS:
        return _told(version, name, document[name])
    try:
        field = parse_field(name)
    except UsageError as error:
        if "." in name and (inner := _inside(document, name)) is not None:
            return inner
        hint = error.hint or did_you_mean(name, document)
        raise UsageError(error.message, hint=hint) from error
    known = Known(version)
    if known.doubtful(field):
        raise _unreadable(version, field.root)
    value = known.value(field)
    if value is None and field.key:
        if (inner := _inside(document, name)) is not None:
            return inner
        raise NotFoundError(
            f"{version.ref} has no {printable(name, 100)}.", hint=suggestion(field, [version])
        )
    return _plain(value)


def _told(version: Version, name: str, value: Any) -> Any:
    if f"mlx.{name}" in version.unreadable:
        raise _unreadable(version, name)
    return value


def _unreadable(version: Version, name: str) -> IntegrityError:
    return IntegrityError(
        f"The tag mlx.{name} of {version.ref} cannot be read.",
        hint=f"See: mlx doctor registry {version.name}",
    )


def _plain(value: Value | None) -> Any:
    # A time is the only field that JSON has no form for.
    return value if value is None or isinstance(value, str | bool | float) else value_text(value)


def _inside(document: Mapping[str, Any], name: str) -> Any:
    inner: Any = document
    for key in name.split("."):
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner


def _text(value: Any) -> str:
    if value is None or isinstance(value, str | bool | float):
        return value_text(value)
    return str(value) if isinstance(value, int) else json.dumps(value)
