"""Where the registry is: the configured URI, understood once."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from mlx_platform.core.errors import UnavailableError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen

_SCHEME = re.compile(r"[a-z][a-z0-9]*(\+[a-z0-9]+)?")
_DATABASES = {"postgresql", "mysql", "mssql"}
_SERVER = re.compile(r"https?:", re.IGNORECASE)
_IN_QUERY = re.compile(r"([?&]\w*(?:password|passwd|pwd)=)[^&]*", re.IGNORECASE)


@frozen
class Address:
    """`uri` is what MLflow takes, `database` the file of a SQLite registry, `shown` is safe to print."""

    kind: Literal["sqlite", "server", "database"]
    uri: str
    database: Path | None
    shown: str


def parse_address(uri: str, folder: Path) -> Address:
    """Understand a registry URI.

    Args:
        uri: `sqlite:///mlx.db` (relative to the folder), `sqlite:////srv/mlx.db`, `https://...`, or a
            database URI such as `postgresql://...`.
        folder: where relative paths start.

    Raises:
        UsageError: the URI is none of these.
    """
    scheme, separator, rest = uri.partition(":")
    driver = scheme.lower().partition("+")[0]
    shown = _without_password(uri)
    if not separator or not _SCHEME.fullmatch(scheme.lower()):
        raise UsageError(f"The registry {shown!r} is no URI.", hint="Write for example sqlite:///mlx.db.")
    if driver == "sqlite":
        database = rest.removeprefix("///")
        path = (folder / Path(database).expanduser()).absolute()
        if not rest.startswith("///") or not database or database == ":memory:" or "?" in str(path):
            raise UsageError(
                f"The registry {shown!r} names no SQLite file.",
                hint="Write sqlite:///mlx.db, or sqlite:////srv/mlx.db for an absolute path.",
            )
        return Address("sqlite", f"sqlite:///{path}", path, f"sqlite:///{path}")
    if driver in {"http", "https"}:
        if not urlsplit(uri).hostname:
            raise UsageError(f"The registry {shown!r} names no host.")
        return Address("server", uri.rstrip("/"), None, shown)
    if driver in _DATABASES:
        return Address("database", _with_driver(scheme, rest), None, shown)
    raise UsageError(
        f"The registry {shown!r} is of no kind that is known.",
        hint="Use sqlite:///FILE, https://SERVER or postgresql://...; a folder cannot be a registry.",
    )


def _with_driver(scheme: str, rest: str) -> str:
    """Name the PostgreSQL driver that is installed, where SQLAlchemy would only look for its older one."""
    if scheme.lower() != "postgresql" or find_spec("psycopg2"):
        return f"{scheme}:{rest}"
    if not find_spec("psycopg"):
        raise UsageError(
            "A registry in PostgreSQL needs its driver, and none is installed.",
            hint="Install it with: pip install 'mlx-platform[services]'",
        )
    return f"postgresql+psycopg:{rest}"


def _without_password(uri: str) -> str:
    # SQLAlchemy takes a slash for a part of the password, which ends the host of a web address.
    secret = "[^/?#]*" if _SERVER.match(uri) else ".*"
    shown = re.sub(rf"(://[^:/?#@]*):{secret}@", r"\1:***@", uri, flags=re.DOTALL)
    return printable(_IN_QUERY.sub(r"\1***", shown), 300)


def locked(shown: str) -> UnavailableError:
    """The error of a registry that another program keeps to itself."""
    return UnavailableError(
        f"The registry {shown} is locked by another program.",
        hint="Try again in a moment; `[registry] timeout` says how long to wait.",
    )
