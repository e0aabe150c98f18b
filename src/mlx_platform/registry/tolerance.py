"""What a quantization was allowed to lose, held against what may be lost today."""

import math
from collections.abc import Mapping
from typing import Any

from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

_ROUNDING = 1e-9
_LIMITS = ("max_drop", "max_rise")


@frozen
class Tolerance:
    """What may be lost at most: an amount in the metric's unit, or a share of the source's value."""

    amount: float
    relative: bool
    shown: str


def too_wide(judged: Mapping[str, Any], tolerances: Mapping[str, Tolerance]) -> str:
    """Why a quantization was judged by more than may be lost today, or by what cannot be compared with it.

    Args:
        judged: by what it was, as its evidence says.
        tolerances: by the kind of limit, `max_drop` or `max_rise`; empty where nobody set one.

    Returns:
        The rest of a sentence that begins with "was judged"; empty where nothing speaks against it.
    """
    limit = judged.get("limit")
    known = limit in _LIMITS
    if not tolerances or (known and limit not in tolerances):
        return ""
    if not known:
        return "by a limit that its evidence does not tell"
    allowed = tolerances[str(limit)]
    amount = judged.get("tolerated_amount")
    number = amount if isinstance(amount, int | float) and not isinstance(amount, bool) else math.inf
    alike = judged.get("tolerated_relative") is allowed.relative
    if alike and number <= allowed.amount * (1 + _ROUNDING):
        return ""
    return f"by {printable(str(judged.get('tolerated')), 40)}, and {allowed.shown} is what may be lost now"
