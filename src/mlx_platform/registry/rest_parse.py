"""Answers of a server, taken apart with care: any value may be of any type."""

import re
from collections.abc import Mapping
from typing import Any

from mlx_platform.core.errors import IntegrityError
from mlx_platform.registry.row import Row

_NUMBER = re.compile(r"[0-9]{1,18}")
_WORDS = {"NaN", "Infinity", "-Infinity"}


def table(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object that must be there."""
    value = document.get(key)
    if not isinstance(value, dict):
        raise _strange(key)
    return value


def part(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object, empty when there is none."""
    return table(document, key) if document.get(key) is not None else {}


def tables(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; empty when there is none."""
    value = document.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _strange(key)
    return value


def text(document: Mapping[str, Any], key: str) -> str:
    """A text; empty when there is none."""
    value = document.get(key, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _strange(key)
    # Half of a surrogate pair is legal in JSON, and an error wherever it is written.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def needed(document: Mapping[str, Any], key: str) -> str:
    """A text that must be there."""
    value = text(document, key)
    if not value:
        raise _strange(key)
    return value


def whole(document: Mapping[str, Any], key: str) -> int:
    """A natural number, also as text; 0 when there is none."""
    value = document.get(key, 0)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18:
        return value
    raise _strange(key)


def decimal(document: Mapping[str, Any], key: str) -> float:
    """A number, 0 when there is none; NaN and the infinities come as words."""
    value = document.get(key, 0.0)
    if isinstance(value, str) and value in _WORDS:
        return float(value)
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 53):
        return float(value)
    raise _strange(key)


def pairs(document: Mapping[str, Any], key: str) -> dict[str, str]:
    """A list of `{"key": ..., "value": ...}` as a mapping."""
    return {text(item, "key"): text(item, "value") for item in tables(document, key)}


def version_row(version: Mapping[str, Any]) -> Row:
    """A model version as the registry describes it."""
    number = whole(version, "version")
    if number < 1:
        raise _strange("version")
    return Row(
        name=text(version, "name"),
        number=number,
        created_ms=whole(version, "creation_timestamp"),
        source=text(version, "source"),
        run_id=text(version, "run_id"),
        description=text(version, "description"),
        tags=pairs(version, "tags"),
        stage=text(version, "current_stage"),
    )


def ready(version: Mapping[str, Any]) -> bool:
    """Whether a version has all of its bytes."""
    return text(version, "status") in {"", "READY"}


def _strange(key: str) -> IntegrityError:
    return IntegrityError(f"The registry answers with a {key!r} that no registry has.")
