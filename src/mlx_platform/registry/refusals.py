"""What a registry refuses, or fails to say, turned into errors of ours."""

import time
from collections.abc import Callable
from typing import TypeVar

from mlx_platform.core.errors import ConflictError, MlxError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.text import first_line, printable
from mlx_platform.registry.address import locked

T = TypeVar("T")


class LostError(UnavailableError):
    """No answer came back, or not a whole one; what was asked for may have been done."""


_ERRORS: dict[str, type[MlxError]] = {
    "INVALID_PARAMETER_VALUE": UsageError,
    "RESOURCE_DOES_NOT_EXIST": NotFoundError,
    "NOT_FOUND": NotFoundError,
    "RESOURCE_ALREADY_EXISTS": ConflictError,
    "ALREADY_EXISTS": ConflictError,
    "RESOURCE_CONFLICT": ConflictError,
    "ABORTED": ConflictError,
    # What MLflow makes of two first writers of one key, of which the second may simply try again.
    "BAD_REQUEST": ConflictError,
}

# MLflow tries three numbers for a new version. When others took them all, it wrote nothing.
_LOST_NUMBERS = "Model Version creation error"


def translate(error: Exception, code: str, *, answered: bool, doing: str, shown: str) -> MlxError:
    """Turn an error out of MLflow into ours.

    Args:
        error: whatever came out.
        code: MLflow's error code, empty when the error is not MLflow's own.
        answered: whether the registry itself said so.
        doing: what was tried, as in "could not ...".
        shown: the registry's URI, safe to print.
    """
    text = first_line(error)
    kind = _ERRORS.get(code)
    if kind is UsageError and "alias" in text and "not found" in text:
        kind = NotFoundError
    if _LOST_NUMBERS in text:
        kind, answered = ConflictError, True
    if kind is None or not (answered or kind is UsageError):
        return unavailable(text, shown, doing)
    return kind(f"Could not {doing}: {text}.")


def unavailable(text: str, shown: str, doing: str = "reach the registry") -> UnavailableError:
    """The error of a registry that is locked, silent, refusing, or no registry at all."""
    if "locked" in text:
        return locked(shown)
    if "out-of-date database schema" in text:
        return UnavailableError(
            f"The registry {shown} has the tables of another version of MLflow than the one installed here.",
            hint=f"An older one: back it up, then mlflow db upgrade {shown}. A newer one: update MLflow.",
        )
    return UnavailableError(
        f"Could not {doing} at {shown}: {printable(text, 200)}.",
        hint="Is it running? --registry, MLX_REGISTRY or mlx.toml names another one.",
    )


def append_version(
    create: Callable[[], int], *, find: Callable[[], int | None], discard: Callable[[], None]
) -> int:
    """Append a version whose bytes are in the store already.

    Args:
        create: appends it, and gives its number.
        find: its number, None where it is not there.
        discard: takes its bytes away.
    """
    try:
        return create()
    except UnavailableError:
        # The version may have been made, or be made in a while, so its bytes stay in any case.
        made = find()
        if made is None:
            raise
        return made
    except MlxError:
        discard()
        raise


def again(write: Callable[[], T], attempts: int = 5) -> T:
    """Repeat a write that lost against another first writer of the same key."""
    for attempt in range(1, attempts):
        try:
            return write()
        except ConflictError:
            time.sleep(0.02 * attempt)
    return write()
