"""Plain words of the command line read without pydantic, which costs more than most commands.

Typer builds a pydantic adapter for each parameter when its value is read. A word, a flag, a number within
its limits and a path need none; whatever is not obviously right goes to Typer, which says what is wrong.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WHOLE = re.compile(r"-?[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


class _Unsure:
    """The answer of a reader that leaves a value to Typer."""


_UNSURE: Final = _Unsure()


class QuickCommand(TyperCommand):
    """A command that asks Typer's adapters only about values that it does not take itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _quick(super().get_params(ctx))


class QuickGroup(TyperGroup):
    """The same for `mlx` itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _quick(super().get_params(ctx))


def _quick(parameters: "Sequence[Any]") -> list[Any]:
    for parameter in parameters:
        full = getattr(parameter, "get_runtime_param", None)
        descriptor = getattr(parameter, "type_descriptor", None)
        if full and descriptor and not isinstance(full, _Quick):
            parameter.get_runtime_param = _Quick(descriptor, full)
    return list(parameters)


class _Quick:
    """Stands where Typer looks for a parameter's reader, and is that reader."""

    def __init__(self, descriptor: Any, full: "Callable[[], Any]") -> None:
        self._annotation = descriptor.annotation
        self._limits = descriptor.parameter_info
        self._full = full

    def __call__(self) -> "_Quick":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        found = self._read(value)
        return self._full().coerce(value, param=param, ctx=ctx) if found is _UNSURE else found

    def _read(self, value: Any) -> Any:
        if value is None and self._annotation != list[str]:
            return None
        if self._annotation == list[str]:
            words = () if value is None else value
            plain = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
            return words if plain and not self._adapted() else _UNSURE
        reader = _READERS.get(self._annotation)
        return _UNSURE if reader is None or self._adapted() else reader(value, self._limits)

    def _adapted(self) -> bool:
        return bool(getattr(self._limits, "parser", None) or getattr(self._limits, "clamp", False))


def _flag(value: Any, _limits: Any) -> Any:
    return value if isinstance(value, bool) else _UNSURE


def _text(value: Any, _limits: Any) -> Any:
    return value if isinstance(value, str) else _UNSURE


def _whole(value: Any, limits: Any) -> Any:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    return value if type(value) is int and _within(value, limits) else _UNSURE


def _decimal(value: Any, limits: Any) -> Any:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = float(value)
    return value if type(value) is float and _within(value, limits) else _UNSURE


def _within(value: float, limits: Any) -> bool:
    return (limits.min is None or value >= limits.min) and (limits.max is None or value <= limits.max)


def _path(value: Any, limits: Any) -> Any:
    if limits.exists or limits.resolve_path or not (limits.file_okay and limits.dir_okay) or limits.path_type:
        return _UNSURE
    if not isinstance(value, str | Path) or (os.path.exists(value) and not os.access(value, os.R_OK)):  # noqa: PTH110 - a Path costs more than the question
        return _UNSURE
    return Path(value)


_READERS: dict[Any, Any] = {bool: _flag, str: _text, int: _whole, float: _decimal, Path: _path}
