"""What a client says about its place in line: 1 is before all others, 2 or 0 is usual, 3 is behind them.

https://github.com/triton-inference-server/server `docs/protocol/extension_schedule_policy.md`.
"""

from collections.abc import Mapping
from typing import Any

from mlx_platform.serving.job import HIGH, LOW, NORMAL
from mlx_platform.serving.refusal import malformed

_HEADER = b"x-request-priority"
_PLACES = (NORMAL, HIGH, NORMAL, LOW)


def priority_of_header(headers: Mapping[bytes, bytes]) -> int:
    """The place in line that a header asks for.

    Raises:
        Refusal: 400; there is no such place.
    """
    wish = headers.get(_HEADER)
    if wish is None:
        return NORMAL
    if len(wish) != 1 or wish not in b"0123":
        raise malformed("X-Request-Priority must be 1 (first), 2 or 0 (usual), or 3 (last).")
    return _PLACES[int(wish)]


def priority_of_parameter(value: Any) -> int | None:
    """The place in line that the parameter `priority` asks for; None where it is not there.

    Raises:
        Refusal: 400; there is no such place.
    """
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < len(_PLACES):
        raise malformed("The parameter priority must be 1 (first), 2 or 0 (usual), or 3 (last).")
    return _PLACES[value]
