"""What a client says about its place in line: 1 is before all others, 2 or 0 is usual, 3 is behind them.

https://github.com/triton-inference-server/server `docs/protocol/extension_schedule_policy.md`.
"""

from collections.abc import Mapping
from typing import Any

from mlx_platform.serving.job import HIGH, LOW, NORMAL
from mlx_platform.serving.refusal import malformed

_HEADER = b"x-request-priority"
_PLACES = (NORMAL, HIGH, NORMAL)


def priority_of_header(headers: Mapping[bytes, bytes]) -> int:
    """The place in line that a header asks for.

    Raises:
        Refusal: 400; it is no number.
    """
    wish = headers.get(_HEADER)
    if wish is None:
        return NORMAL
    if not wish.isdigit() or len(wish) > 9:
        raise malformed("X-Request-Priority must be a number: 1 is first, 2 usual, 3 last.")
    return _place(int(wish))


def priority_of_parameter(value: Any) -> int | None:
    """The place in line that the parameter `priority` asks for; None where it is not there.

    Raises:
        Refusal: 400; it is no number.
    """
    if value is None:
        return None
    if type(value) is not int or value < 0:
        raise malformed("The parameter priority must be a number: 1 is first, 2 usual, 3 last.")
    return _place(value)


def _place(wish: int) -> int:
    return _PLACES[wish] if wish < len(_PLACES) else LOW
