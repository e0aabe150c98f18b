from contextlib import suppress

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_platform.serving.json_body import MAX_DEPTH, parse_object
from mlx_platform.serving.refusal import Refusal


def refused(body: bytes) -> str:
    with pytest.raises(Refusal) as caught:
        parse_object(body)
    assert caught.value.status == 400
    return caught.value.message


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """An object around arrays: `depth` levels in all."""
    return b'{"a":' + opening * (depth - 1) + closing * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"{}{}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":01}',
        b'{"a":1,}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":"\x01"}',
        b"\xef\xbb\xbf{}",
        b'{"a":"' + b'\\"' * 200,
    ],
)
def test_what_is_no_json_is_refused(body):
    assert refused(body).startswith("The body is no valid JSON")


@pytest.mark.parametrize("body", [b"[]", b"1", b'"a"', b"null", b"true"])
def test_what_is_no_object_is_refused(body):
    assert refused(body) == "The body must be a JSON object."


def test_nesting_is_refused_one_level_beyond_the_limit():
    parse_object(nested(MAX_DEPTH))
    assert "deeper than 100" in refused(nested(MAX_DEPTH + 1))
    assert "deeper than 100" in refused(nested(100_000))
    assert "deeper than 100" in refused(b'{"a":' * 101 + b"1" + b"}" * 101)


def test_brackets_inside_of_strings_are_no_nesting():
    text = "[{" * 300 + '"' + "\\" * 3 + "]" * 900
    document = {"a": text, text: [[1], [2]], "c": ["[" * 200] * 3}
    assert parse_object(orjson.dumps(document)) == document


def test_closing_brackets_inside_of_strings_do_not_hide_nesting():
    body = b'{"s":"' + b"]" * 500 + b'","a":' + b"[" * 100 + b"]" * 100 + b"}"
    assert "deeper" in refused(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}',
        b'{"a":{"b":1,"b":1}}',
        b'{"a":[{"b":1},{"b":1,"b":2}]}',
        b'{"a":[1,{"b":1,"b":2}]}',
        b'{"a":[{"b":1,"b":2},"x"]}',
        b'{"a":[{"b":1,"parameters":{"c":1,"c":2}}]}',
        b'{"a":[[{"b":1,"b":2}]]}',
        b'{"a":1,"\\u0061":2}',
        b'{":":1,"x":":","a":1,"a":2}',
    ],
)
def test_a_name_that_stands_twice_in_an_object_is_refused(body):
    assert "same name twice" in refused(body)


def test_messages_never_repeat_the_body():
    for body in (b'{"secret":1,"secret":2}', b'{"a":secret}', b'{"secret":"\\ud800"}'):
        assert "secret" not in refused(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_every_object_without_repeated_names_is_read_as_it_is(document):
    assert parse_object(orjson.dumps(document)) == document


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_refusal(body):
    with suppress(Refusal):
        parse_object(body)
