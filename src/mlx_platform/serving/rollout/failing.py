"""What counts against a version in a rollout, and what does not."""

from mlx_platform.serving.cache.answers import HIT, SEMANTIC
from mlx_platform.serving.devices.standby import FALLBACK_ARM, RULE_ARM
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.rollout.compare import is_sound

_QUEUE_FULL = 429
_CACHED = frozenset((HIT, SEMANTIC))
_STAND_INS = frozenset((FALLBACK_ARM, RULE_ARM))


def stood_in(exchange: Exchange) -> bool:
    """Whether something else answered in the place of the version."""
    return exchange.identity is not None and exchange.identity.arm in _STAND_INS


def failed(exchange: Exchange, status: int) -> bool | None:
    """Whether a version failed to answer a request; None when the request says nothing about it.

    A failure is a status of 500 or above, a full queue, an answer with NaN or infinity, one that another
    version or a rule had to give, and a refusal by the network itself: the client's input had passed every
    check that comes before. What was refused by those checks says something about the client alone. Whoever
    left before the answer was at least not served within that time, so it counts as a request. An answer out
    of a cache says nothing: the version that has been there for longer has more of them.
    """
    if status >= 500 or status == _QUEUE_FULL or stood_in(exchange):
        return True
    if status < 400:
        return None if exchange.cache in _CACHED else not is_sound(exchange.outputs)
    if exchange.abandoned:
        return False
    return True if exchange.computed else None
