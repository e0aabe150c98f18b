import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tables import HIDDEN, changed, known_keys, read_table, setting


@dataclass(frozen=True, slots=True)
class Inner:
    size: int = setting(1, ge=1, le=9, description="in boxes")


@dataclass(frozen=True, slots=True)
class Outer:
    text: str = ""
    on: bool = False
    share: float = setting(0.5, gt=0, le=1)
    kind: Literal["a", "b"] = "a"
    hour: str = setting("00", pattern="[0-2][0-9]")
    kinds: tuple[Literal["a", "b"], ...] = ()
    inner: Inner = Inner()
    inners: tuple[Inner, ...] = ()
    named: dict[str, Inner] = field(default_factory=dict)
    maybe: int | None = None
    rows: int | Literal["auto", "all"] = setting(32, ge=1)
    bounded: float | None = setting(None, gt=0)
    word: str | None = setting(None, pattern="[a-z]+")
    secret: str = field(default="", metadata=HIDDEN)


def read(**values: Any) -> Outer:
    return read_table(Outer, values, source="file")


def test_every_kind_of_value_is_read_with_its_type() -> None:
    table = read(
        text="x",
        on=True,
        share=1,
        kind="b",
        hour="23",
        kinds=["a", "b"],
        inner={"size": 2},
        inners=[{"size": 3}, {}],
        named={"one": {"size": 4}},
        maybe=5,
    )

    assert table == Outer(
        "x", True, 1.0, "b", "23", ("a", "b"), Inner(2), (Inner(3), Inner(1)), {"one": Inner(4)}, 5
    )
    assert isinstance(table.share, float)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("on", "true", True),
        ("on", "OFF", False),
        ("on", "1", True),
        ("share", "0.25", 0.25),
        ("maybe", "7", 7),
        ("rows", "7", 7),
        ("rows", "auto", "auto"),
    ],
)
def test_text_of_the_environment_becomes_what_the_field_is(key: str, text: str, value: object) -> None:
    found = getattr(read(**{key: text}), key)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": 1}, "file: text = 1 is not possible: it is text in quotes."),
        ({"on": "maybe"}, "on = 'maybe' is not possible: it is true or false"),
        ({"on": 2}, "on = 2 is not possible"),
        ({"maybe": True}, "maybe = True is not possible: it is a whole number"),
        ({"maybe": 1.5}, "maybe = 1.5 is not possible"),
        ({"maybe": math.inf}, "maybe = inf is not possible"),
        ({"maybe": "9" * 5000}, "maybe = '9999"),
        ({"share": "much"}, "it is a number"),
        ({"rows": "most"}, "it is a number or 'auto', 'all'"),
        ({"rows": 0}, "rows = 0 is not possible: it is at least 1"),
        ({"share": 10**400}, "it is a number"),
        ({"share": False}, "it is a number"),
        ({"share": 0}, "share = 0.0 is not possible: it is above 0 and at most 1"),
        ({"share": math.nan}, "share = nan is not possible"),
        ({"kind": "c"}, "it is one of a, b"),
        ({"kind": ["a"]}, "it is one of a, b"),
        ({"hour": "7"}, "of the form"),
        ({"hour": "07\n"}, "of the form"),
        ({"kinds": "a"}, "it is a list"),
        ({"kinds": ["a", "c"]}, "kinds.1 = 'c' is not possible"),
        ({"inner": 1}, "inner = 1 is not possible: it is a table"),
        (
            {"inner": {"size": 10}},
            "inner.size = 10 is not possible: it is at least 1 and at most 9 (in box",
        ),
        ({"inners": [{}, {"size": 0}]}, "inners.1.size = 0"),
        ({"named": []}, "named = [] is not possible: it is a table"),
        ({"named": {"one": {"sise": 1}}}, "unknown key 'named.one.sise'"),
        ({"secret": "x"}, "unknown key 'secret'"),
        ({"a\x1b[2Jb": 1}, "unknown key 'a\\\\u001b[2Jb'"),
    ],
)
def test_what_a_field_does_not_take_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(**values)

    assert message in caught.value.message
    assert len(caught.value.message) < 300


def test_a_misspelt_key_is_answered_with_the_closest_of_its_own_table() -> None:
    with pytest.raises(UsageError) as caught:
        read(inner={"sise": 1})

    assert caught.value.hint == "Did you mean 'size'?"


def test_all_that_is_wrong_with_a_file_is_told_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read(text=1, on="maybe", inners=[{"size": 0}, {"size": 3}, {"sise": 3}])

    assert caught.value.message == "4 things are wrong:"
    assert [problem.split(" ")[1] for problem in caught.value.details["problems"]] == [
        "text",
        "on",
        "inners.0.size",
        "unknown",
    ]
    assert caught.value.hint == "Did you mean 'size'?"


def test_a_pattern_is_shown_only_where_no_words_say_what_it_means() -> None:
    @dataclass(frozen=True)
    class Spans:
        span: str = setting("1m", pattern=r"\d+m", description="such as 5m")

    with pytest.raises(UsageError, match=r"it is text \(such as 5m\)\.$"):
        read_table(Spans, {"span": "soon"}, source="file")


def test_changed_values_are_checked_like_those_of_a_file() -> None:
    table = read(named={"one": {"size": 4}})

    assert changed(table, {"maybe": 3}, source="flags") == Outer(named={"one": Inner(4)}, maybe=3)
    with pytest.raises(UsageError, match=r"flags: share = 2\.0"):
        changed(table, {"share": 2}, source="flags")


def test_known_keys_leave_out_what_cannot_be_set() -> None:
    assert "secret" not in known_keys(Outer)
    assert "inner" in known_keys(Outer)


def test_a_limit_holds_for_a_value_that_is_there_and_for_no_other() -> None:
    assert read(bounded=None, word=None) == Outer()
    assert (read(bounded=2).bounded, read(word="abc").word) == (2.0, "abc")
    for values in ({"bounded": 0}, {"word": "A1"}):
        with pytest.raises(UsageError, match="is not possible"):
            read(**values)
