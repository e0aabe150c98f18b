"""What stands between MLflow and the rest: silence and deadlines."""

import logging
import os
import socket
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from mlx_platform.core.text import first_line
from mlx_platform.registry.address import Address
from mlx_platform.registry.refusals import unavailable

_LOGGERS = ("mlflow", "alembic", "sqlalchemy", "urllib3")
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}


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
