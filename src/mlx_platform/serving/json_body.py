"""The JSON boundary: bytes of a stranger in, plain values out, or a refusal that says where it went wrong.

orjson already refuses NaN, Infinity, numbers beyond double precision, lone surrogates, byte order marks and
trailing text. Added here: a limit on nesting, and no name twice in an object, where most parsers silently
keep the last one.
"""

from typing import Any

import numpy as np
import orjson

from mlx_platform.core.tensors import Array
from mlx_platform.serving.refusal import malformed

MAX_DEPTH = 100
_MARKS = b'[]{}":'
_OTHERS = bytes(byte for byte in range(256) if byte not in _MARKS)
_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        Refusal: 400; the body is no JSON, no object, too deep, or names something twice.
    """
    document = load_object(body)
    refuse_repeated_names(body, document)
    return document


def load_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object of which more is to be checked before `refuse_repeated_names` walks through it.

    Raises:
        Refusal: 400; the body is no JSON, no object, or too deep.
    """
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise malformed(f"The JSON is nested deeper than {MAX_DEPTH} levels.")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed(f"The body is no valid JSON: {error}.") from error
    if not isinstance(document, dict):
        raise malformed("The body must be a JSON object.")
    return document


def _depth(body: bytes) -> int:
    """The deepest nesting, brackets inside of strings not counted."""
    return int(np.cumsum(_STEPS[_marks_outside_strings(body)], dtype=np.int32).max(initial=0))


def _marks_outside_strings(body: bytes) -> Array:
    """Brackets and colons that are no part of a string, in order. Linear in the body, whatever it holds."""
    if b"\\" in body:
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    found = np.frombuffer(body.translate(None, _OTHERS), dtype=np.uint8)
    quotes = found == ord('"')
    outside = np.cumsum(quotes, dtype=np.uint8) & 1 == 0  # a sum that wraps around stays even or odd
    kept: Array = found[outside & ~quotes]
    return kept


def count_marks(body: bytes, mark: bytes) -> int:
    """How often one of `[`, `]`, `{`, `}` and `:` stands outside of strings, without parsing the body."""
    return int(np.count_nonzero(_marks_outside_strings(body) == ord(mark)))


def refuse_repeated_names(body: bytes, document: dict[str, Any]) -> None:
    """Check that no object lost a member to another of the same name.

    Raises:
        Refusal: 400; one did.
    """
    # Every name is followed by one colon: where one was dropped, there are fewer names than colons.
    if body.count(b":") == _names_at_a_glance(document):
        return
    if count_marks(body, b":") != _names(document):
        raise malformed("An object in the JSON holds the same name twice.")


def _names_at_a_glance(document: dict[str, Any]) -> int:
    """Count the names where protocols have some: in members that are objects or lists of such, and in theirs.

    Those in other places are left out, so that there may only seem to be too few. A walk through everything
    takes four times as long.
    """
    count = len(document)
    for member in document.values():
        if type(member) is dict:
            count += len(member)
        elif type(member) is list and member and type(member[0]) is dict:
            for inner in member:
                if type(inner) is dict:
                    count += len(inner)
                    parameters = inner.get("parameters")
                    if type(parameters) is dict:
                        count += len(parameters)
    return count


def _names(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_names(inner) for inner in value.values())
    if isinstance(value, list):
        return sum(_names(inner) for inner in value)
    return 0
