"""Single values of a gate document: of the right type, or refused with the place where they stand."""

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.evaluation.gate_lines import Lines, Path

PERCENT = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)%")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: its file, the way to it, its line where that is known, and words for people."""

    source: str
    lines: Lines = field(default_factory=dict)
    path: Path = ()
    words: tuple[str, ...] = ()

    def at(self, *keys: str | int, said: str = "") -> "Place":
        words = said or ", ".join(str(key) for key in keys)
        return replace(self, path=(*self.path, *keys), words=(*self.words, *([words] if words else [])))

    @property
    def line(self) -> int:
        """The line of the value, or of the nearest table around it; 0 when unknown."""
        ways = (self.path[:end] for end in range(len(self.path), 0, -1))
        return next((self.lines[way] for way in ways if way in self.lines), 0)

    def __str__(self) -> str:
        line = [f"line {self.line}"] if self.line else []
        return ", ".join((self.source, *line, *self.words))


def number_of(value: Any, place: Place, *, percent: bool = False) -> float:
    """A finite number; with `percent` also a share of 100 as text, such as `90%`.

    Raises:
        UsageError: it is something else.
    """
    if isinstance(value, str) and (match := PERCENT.fullmatch(value)):
        if percent:
            return float(match[1]) / 100
        raise UsageError(f"{place}: {printable(repr(value), 60)} is a percentage of what is no share.")
    whole = isinstance(value, int) and not isinstance(value, bool)
    # A whole number may be too large for a float.
    if (whole and abs(value) <= sys.float_info.max) or (isinstance(value, float) and math.isfinite(value)):
        return float(value)
    hint = "Write a number without quotes, or a share such as 90%." if isinstance(value, str) else ""
    raise UsageError(f"{place}: {printable(repr(value), 60)} is no finite number.", hint=hint)


def share_of(value: Any, place: Place) -> float:
    number = number_of(value, place, percent=True)
    if not 0 <= number <= 1:
        raise UsageError(f"{place}: a share lies between 0 and 1, and this is {number:g}.")
    return number


def text_of(table: Mapping[str, Any], key: str, place: Place) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f"{place.at(key)}: {key} is not a text.")
    return value


def table_of(value: Any, place: Place, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{place}: {what} is not a table of named values.")
    return value


def check_keys(table: Mapping[str, Any], known: Iterable[str], place: Place) -> None:
    for key in table:
        if key not in known:
            here = replace(place, path=(*place.path, key))
            raise UsageError(f"{here}: unknown key {printable(key, 60)!r}.", hint=did_you_mean(key, known))


def whole_of(table: Mapping[str, Any], key: str, place: Place, *, default: int = 0, least: int = 0) -> int:
    value = table.get(key, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        shown = printable(repr(value), 40)
        raise UsageError(f"{place.at(key)}: {key} is a whole number from {least}, not {shown}.")
    return value


def word_of(table: Mapping[str, Any], key: str, allowed: tuple[str, ...], place: Place) -> Any:
    value = table.get(key, allowed[0])
    if value not in allowed:
        shown = printable(repr(value), 40)
        raise UsageError(f"{place.at(key)}: {key} is one of {', '.join(allowed)}, not {shown}.")
    return value


def listed_of(value: Any, place: Place) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise UsageError(f"{place}: it is a list, not {printable(repr(value), 40)}.")
    return value
