import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from mlx_platform.core.values import frozen


@frozen
class Mine:
    """A place."""

    x: int
    tags: dict[str, int] = field(default_factory=dict)
    name: str = "here"

    @property
    def twice(self) -> int:
        return self.x * 2


@dataclass(frozen=True, slots=True)
class Theirs:
    """A place."""

    x: int
    tags: dict[str, int] = field(default_factory=dict)
    name: str = "here"


@frozen
class Counted:
    made: list[str]

    def __post_init__(self) -> None:
        self.made.append("made")

    def __repr__(self) -> str:
        return "counted"


@frozen
class Empty:
    pass


BOTH = pytest.mark.parametrize("cls", [Mine, Theirs])


@BOTH
def test_it_is_made_compared_shown_and_changed_like_a_dataclass(cls: Any) -> None:
    one = cls(1, name="there")

    assert (one.x, one.tags, one.name) == (1, {}, "there")
    assert one == cls(1, {}, "there")
    assert one != cls(2, {}, "there")
    assert one != (1, {}, "there")
    assert repr(one) == f"{cls.__name__}(x=1, tags={{}}, name='there')"
    assert replace(one, x=5) == cls(5, {}, "there")
    assert asdict(one) == {"x": 1, "tags": {}, "name": "there"}
    assert [entry.name for entry in fields(one)] == ["x", "tags", "name"]
    assert cls(1).tags is not cls(1).tags
    assert cls.__doc__ == "A place."


@BOTH
def test_it_is_frozen_and_has_no_room_for_more(cls: Any) -> None:
    one = cls(1)

    with pytest.raises(FrozenInstanceError):
        one.x = 2
    with pytest.raises(FrozenInstanceError):
        del one.x
    with pytest.raises((FrozenInstanceError, TypeError)):  # slots and super() do not go together in 3.11
        one.other = 2
    assert not hasattr(one, "__dict__")


@BOTH
def test_wrong_arguments_are_errors(cls: Any) -> None:
    for arguments, named in (((), {}), ((1, {}, "a", "b"), {}), ((1,), {"y": 1}), ((1,), {"x": 1})):
        with pytest.raises(TypeError):
            cls(*arguments, **named)


@BOTH
def test_it_can_be_hashed_copied_and_pickled(cls: Any) -> None:
    one = cls(1, tags=(), name="there")  # a tuple, since a dict has no hash

    assert hash(one) == hash(cls(1, (), "there"))
    assert len({one, cls(1, (), "there"), cls(2, (), "there")}) == 2
    assert copy.copy(one) == copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own


@BOTH
def test_it_matches_by_position_and_by_name(cls: Any) -> None:
    match cls(1, {}, "there"):
        case cls(x, tags, name="there"):
            assert (x, tags) == (1, {})
        case _:
            pytest.fail("no match")


@BOTH
def test_its_signature_tells_names_types_and_defaults(cls: Any) -> None:
    parameters = inspect.signature(cls).parameters

    assert [(name, parameters[name].annotation) for name in parameters] == [
        ("x", int),
        ("tags", dict[str, int]),
        ("name", str),
    ]
    assert (parameters["x"].default, parameters["name"].default) == (inspect.Parameter.empty, "here")


def test_methods_of_the_class_itself_stay() -> None:
    made: list[str] = []

    assert repr(Counted(made)) == "counted"
    assert made == ["made"]
    assert Mine(4).twice == 8
    assert Empty() == Empty()
    assert Empty.__doc__ == "Empty"
