"""Frozen, slotted dataclasses that cost a fifth of the time to make.

`dataclasses.dataclass` compiles six methods for each class. On the way of a command that answers in a fifth
of a second there are dozens of classes, and that was a quarter of its time. Here only `__init__` is compiled;
the others are written once, for all. `fields`, `replace`, `asdict` and `match` work as ever.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a class with annotated fields a value: `dataclass(frozen=True, slots=True)`, for less.

    A field that takes no part in `__init__`, comparison or `repr` is not supported.
    """
    own = set(vars(cls))
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclass would write a signature, and take its time
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    setattr(made, "__init__", _initializer(made))  # noqa: B010 - a type checker refuses the plain assignment
    for name, method in _METHODS.items():
        if name not in own:
            setattr(made, name, method)
    return made


def _initializer(cls: type) -> Callable[..., None]:
    names: dict[str, Any] = {"put_": object.__setattr__, "missing_": MISSING}
    parameters, body = ["self"], []
    for entry in fields(cls):
        name = entry.name
        found = name
        if entry.default is not MISSING:
            names[f"default_{name}"] = entry.default
            parameters.append(f"{name}=default_{name}")
        elif entry.default_factory is not MISSING:
            names[f"make_{name}"] = entry.default_factory
            parameters.append(f"{name}=missing_")
            found = f"make_{name}() if {name} is missing_ else {name}"
        else:
            parameters.append(name)
        body.append(f"  put_(self, {name!r}, {found})")
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    source = f"def __init__({', '.join(parameters)}):\n" + "\n".join(body or ["  pass"])
    exec(source, names)  # noqa: S102 - made of the names of fields
    initializer: Callable[..., None] = names["__init__"]
    initializer.__annotations__ = {entry.name: entry.type for entry in fields(cls)}
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    return initializer


def _contents(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def _repr(self: Any) -> str:
    parts = (f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _eq(self: Any, other: object) -> Any:
    return _contents(self) == _contents(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_contents(self))


def _setattr(_self: Any, name: str, _value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(_self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), _contents(self)


_METHODS: dict[str, Any] = {
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__reduce__": _reduce,
}
