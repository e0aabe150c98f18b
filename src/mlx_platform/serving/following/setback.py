"""Why a version could not be loaded, and when to try again."""

import time
from dataclasses import dataclass
from typing import Any

from mlx_platform.core.errors import (
    DeadlineError,
    GateFailedError,
    IntegrityError,
    MlxError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from mlx_platform.core.text import first_line, printable
from mlx_platform.serving.following.aside import StillBusyError
from mlx_platform.serving.following.desk import NoRoomError, SignatureError

REASONS = (
    "registry",
    "missing",
    "integrity",
    "signature",
    "load",
    "self_check",
    "deadly",
    "no_room",
    "disk",
    "too_long",
    "error",
)
"""Words for why a version could not be loaded."""


class DeadlyError(MlxError):
    """Processes that began to load the version have died of it."""

    code = "deadly"


_BY_ERROR: tuple[tuple[type[BaseException], str], ...] = (
    (SignatureError, "signature"),
    (DeadlyError, "deadly"),
    (NoRoomError, "no_room"),
    (StillBusyError, "too_long"),
    (MemoryError, "no_room"),
    (IntegrityError, "integrity"),
    (NotFoundError, "missing"),
    (GateFailedError, "self_check"),
    (DeadlineError, "too_long"),
    (TimeoutError, "too_long"),
    (UnavailableError, "registry"),
    (UsageError, "load"),
    (OSError, "disk"),
)
_PASSING = {"registry", "missing", "no_room", "disk", "too_long", "error"}  # may be over the next time
_FIRST_DELAY = 5.0
_MOST_DELAY = 300.0


def reason_of(error: BaseException) -> str:
    """One of `REASONS`."""
    return next((word for kind, word in _BY_ERROR if isinstance(error, kind)), "error")


@dataclass(frozen=True, slots=True)
class Setback:
    """A version that could not be loaded: how often, why, and when on `time.monotonic` to try again.

    `again` is None where trying again would come to the same.
    """

    number: int
    reason: str
    message: str
    attempts: int
    again: float | None

    @classmethod
    def of(cls, number: int, error: BaseException, before: "Setback | None") -> "Setback":
        attempts = before.attempts + 1 if before is not None and before.number == number else 1
        reason = reason_of(error)
        delay = min(_FIRST_DELAY * 2 ** (attempts - 1), _MOST_DELAY)
        again = time.monotonic() + delay if reason in _PASSING else None
        return cls(number, reason, said(error), attempts, again)

    def holds(self, number: int) -> bool:
        """Whether a version should not be tried now."""
        return number == self.number and (self.again is None or time.monotonic() < self.again)

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        wait = None if self.again is None else round(max(0.0, self.again - time.monotonic()), 1)
        return {
            "version": str(self.number),
            "reason": self.reason,
            "message": self.message,
            "attempts": self.attempts,
            "again_in_s": wait,
        }


def said(error: BaseException) -> str:
    """What an error says, in one line that is safe to print."""
    text = error.message if isinstance(error, MlxError) else f"{type(error).__name__}: {first_line(error)}"
    return printable(text, 400)
