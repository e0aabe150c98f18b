"""Every error that a user can cause or meet, each with the exit code it ends a command with.

    MlxError                    1   something unexpected
    ├── UsageError              2   a flag, a file or a configuration that cannot be used
    ├── NotFoundError           3   no such model, version, alias or file
    ├── ConflictError           4   somebody else moved it, or it is in use
    ├── GateFailedError         5   a gate said no
    ├── UndecidedError          7   too little data, or not applicable: never a pass
    ├── DeadlineError           8   still running when its time was over
    ├── UnavailableError        9   registry, store or server unreachable, busy or refusing
    ├── IntegrityError         10   bytes that are not what their digest says
    └── CancelledError        130   Ctrl-C

Only `cli/` catches them; a message says what happened, what was expected, and in `hint` what to do next.
"""

from typing import Any, ClassVar

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended: 128 + SIGINT, as a shell reports it."""


class MlxError(Exception):
    """The root of the tree.

    Args:
        message: one sentence: what happened and what was expected.
        hint: what to do next, preferably a command.
        details: machine-readable facts for the JSON document.
    """

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(MlxError):
    exit_code = 2
    code = "usage"


class NotFoundError(MlxError):
    exit_code = 3
    code = "not_found"


class ConflictError(MlxError):
    exit_code = 4
    code = "conflict"


class GateFailedError(MlxError):
    exit_code = 5
    code = "gate_failed"


class UndecidedError(MlxError):
    exit_code = 7
    code = "undecided"


class DeadlineError(MlxError):
    exit_code = 8
    code = "deadline"


class UnavailableError(MlxError):
    exit_code = 9
    code = "unavailable"


class IntegrityError(MlxError):
    exit_code = 10
    code = "integrity"


class CancelledError(MlxError):
    exit_code = INTERRUPTED
    code = "interrupted"
