"""One at a time where MLflow creates its tables, which it does not expect to do with others."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mlx_platform.core.files import file_lock
from mlx_platform.registry.address import Address

_SECONDS = 300.0  # a migration on a slow disk; the lock dies with its holder
_ADVISORY_KEY = 0x6D6C78  # any number that others are unlikely to lock


@contextmanager
def first_use(address: Address) -> Iterator[None]:
    """Keep others out while MLflow opens a registry, which creates it when it is new.

    A SQLite registry is locked by a file beside it, PostgreSQL by a lock of its own for all machines; other
    databases cannot be locked before they have tables.

    Raises:
        UnavailableError: another process of this machine takes too long.
        SQLAlchemyError: the database cannot be reached.
    """
    if address.database:
        lock = address.database.with_name(f".{address.database.name}.init.lock")
        with file_lock(lock, timeout=_SECONDS, purpose="creating the registry"):
            yield
    elif address.uri.startswith("postgresql"):
        with _advisory_lock(address.uri):
            yield
    else:
        yield


@contextmanager
def _advisory_lock(uri: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sqlalchemy import create_engine, pool, text

    engine = create_engine(uri, poolclass=pool.NullPool)
    # The connection's end is the lock's end, so nobody's death keeps others out.
    with engine.connect() as connection:
        connection.execute(text(f"SET lock_timeout = '{int(_SECONDS)}s'"))
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_KEY})
        yield
