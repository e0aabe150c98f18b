"""What stands between MLflow and the rest: silence, deadlines, and errors turned into ours."""

import logging
import os
import socket
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from mlx_platform.core.errors import ConflictError, MlxError, NotFoundError, UnavailableError, UsageError
from mlx_platform.core.text import first_line, printable
from mlx_platform.registry.address import Address, locked

_LOGGERS = ("mlflow", "alembic", "sqlalchemy", "urllib3")
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
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
    if kind is None or not (answered or kind is UsageError):
        return unavailable(text, shown, doing)
    return kind(f"Could not {doing}: {text}.")


def unavailable(text: str, shown: str, doing: str = "reach the registry") -> UnavailableError:
    """The error of a registry that is locked, silent, refusing, or no registry at all."""
    if "locked" in text:
        return locked(shown)
    return UnavailableError(
        f"Could not {doing} at {shown}: {printable(text, 200)}.",
        hint="Is it running? --registry, MLX_REGISTRY or mlx.toml names another one.",
    )


def probe(address: Address, timeout: float) -> None:
    """Find out within the timeout what MLflow would take minutes of retries to find out.

    Raises:
        UnavailableError: nobody listens, or the file is locked or cannot be written.
    """
    try:
        if address.database:
            address.database.parent.mkdir(parents=True, exist_ok=True)
            with closing(
                sqlite3.connect(address.database, timeout=timeout, isolation_level=None)
            ) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            return
        parts = urlsplit(address.uri)
        port = parts.port or _PORTS.get(parts.scheme.partition("+")[0])
        if parts.hostname and port:
            socket.create_connection((parts.hostname, port), timeout=timeout).close()
    except (OSError, sqlite3.Error, ValueError) as error:
        raise unavailable(first_line(error), address.shown) from error


def prepare_environment(timeout: float) -> None:
    """Tell MLflow before it is imported to report nothing home, draw nothing, and give up in time."""
    for variable, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(max(1, int(timeout / 2))),
    }.items():
        os.environ.setdefault(variable, value)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the loggers and warnings of MLflow and what it stands on to themselves for a while."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def again(write: Callable[[], None], attempts: int = 5) -> None:
    """Repeat a write that lost against another first writer of the same key."""
    for attempt in range(attempts):
        try:
            return write()
        except ConflictError:
            if attempt == attempts - 1:
                raise
            time.sleep(0.02 * (attempt + 1))
    return None
