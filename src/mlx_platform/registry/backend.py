"""The configured registry, opened as far as a call needs it: by the lightest way that does what is asked."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.errors import IntegrityError, NotFoundError
from mlx_platform.core.files import file_lock
from mlx_platform.core.settings import Settings
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.registry.address import parse_address
from mlx_platform.registry.artifacts import artifact_root, locate, locate_foreign
from mlx_platform.registry.cache import Opener, folder_opener
from mlx_platform.registry.reader import Reader
from mlx_platform.registry.ref import is_name
from mlx_platform.registry.sqlite_read import SqliteReader
from mlx_platform.registry.sqlite_write import sqlite_writer
from mlx_platform.registry.standing import UNASKED, Standing
from mlx_platform.registry.version import Version
from mlx_platform.registry.writer import Writer

if TYPE_CHECKING:
    from mlx_platform.registry.rest import RestStore
    from mlx_platform.registry.store import Store

_REGISTER_SECONDS = 600.0  # somebody may be copying gigabytes
_FILE_CAP = 4 << 30  # bytes of a file whose size nobody has written down
_MANIFEST_CAP = 16 << 20  # bytes, beside those that a version's size counts


class Backend:
    """Where versions are read and written.

    Raises:
        UsageError: the registry's URI is none.
    """

    def __init__(self, settings: Settings) -> None:
        self._timeout = settings.registry.timeout
        self._address = parse_address(settings.registry.uri, settings.folder)
        self._root = artifact_root(settings.registry.artifacts, settings.path(settings.registry.artifacts))
        self._sources = tuple(artifact_root(text, settings.path(text)) for text in settings.registry.sources)

    @property
    def shown(self) -> str:
        """The registry's URI, without a password."""
        return self._address.shown

    @property
    def timeout(self) -> float:
        """Seconds to wait for a registry that is busy or silent."""
        return self._timeout

    @property
    def local(self) -> bool:
        """Whether packages lie on this disk, and cost nothing to look at."""
        return self._root.folder is not None and self._address.kind != "server"

    @property
    def database(self) -> Path | None:
        """The file of a SQLite registry."""
        return self._address.database

    @cached_property
    def store(self) -> "Store | RestStore":
        """All that a registry can do, by a server's REST API or by MLflow; its first call connects."""
        if self._address.kind == "server":
            from mlx_platform.registry.rest import RestStore

            return RestStore(self._address, timeout=self._timeout, artifacts=self._root.uri)
        from mlx_platform.registry.store import Store

        return Store(self._address, timeout=self._timeout, artifacts=self._root.uri)

    @cached_property
    def reader(self) -> Reader:
        """The fastest reader that understands the registry.

        Raises:
            NotFoundError: there is no registry yet.
            UnavailableError: it is locked, or no database.
        """
        if self._address.database:
            fast = SqliteReader(self._address.database, timeout=self._timeout)
            if fast.understands():
                return fast
        return self.store

    @cached_property
    def writer(self) -> Writer:
        """The lightest writer of rows that fits the registry; bytes and runs are the store's.

        Raises:
            NotFoundError: there is no registry yet.
            UnavailableError: it is locked, or no database.
        """
        if self._address.database:
            fast = sqlite_writer(self._address.database, timeout=self._timeout)
            if fast:
                return fast
        return self.store

    def create(self) -> bool:
        """Create the registry and the folder of its bytes; False when it was there."""
        new = False
        if self._address.database:
            try:
                SqliteReader(self._address.database, timeout=self._timeout).understands()
            except NotFoundError:
                new = True
        if self._root.folder and self._address.kind != "server":
            self._root.folder.mkdir(parents=True, exist_ok=True)
        self.store.prepare()
        return new

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other registrations of this machine out of a SQLite registry; elsewhere nothing can."""
        database = self._address.database
        if database is None:
            yield
            return
        lock = database.with_name(f".{database.name}.register.lock")
        with file_lock(lock, timeout=_REGISTER_SECONDS, purpose="registering"):
            yield

    def load(self, name: str, number: int, standing: Standing = UNASKED) -> Version | None:
        """One version; None when there is none of this number, or when it is no number of a version."""
        if number < 1:
            return None
        found = (standing.version(row) for row in self.reader.rows(name, numbers=(number,)))
        return next((version for version in found if version), None)

    def no_model(self, name: str) -> NotFoundError:
        """The error for a model that is not there, with the closest one that is."""
        known = [other for other in self.reader.names() if is_name(other)]
        if name in known:
            return NotFoundError(
                f"The model {name} has no version left in the registry {self.shown}.",
                hint=f"Register one with: mlx register {name} SOURCE",
            )
        return NotFoundError(
            f"There is no model {printable(name)!r} in the registry {self.shown}.",
            hint=did_you_mean(name, known) or "Register one with: mlx register NAME SOURCE",
        )

    def opener(self, version: Version) -> Opener:
        """How to read the files of a version's package.

        Raises:
            IntegrityError: the registry says they are where no package may be.
        """
        place = locate(
            self.reader.location(version.name, version.number),
            version.source,
            self._root,
            server=self._address.kind == "server",
        )
        if isinstance(place, Path):
            return folder_opener(place)
        return self._remote_opener(place, version.size + _MANIFEST_CAP if version.size else _FILE_CAP)

    def foreign_opener(self, location: str) -> Opener:
        """How to read the files of a model that plain MLflow put somewhere.

        Raises:
            IntegrityError: the settings allow no model to be read there.
        """
        server = self._address.kind == "server"
        place = locate_foreign(location, (self._root, *self._sources), server=server)
        return folder_opener(place) if isinstance(place, Path) else self._remote_opener(place, _FILE_CAP)

    def _remote_opener(self, uri: str, cap: int) -> Opener:
        def open_file(path: str) -> int:
            with tempfile.TemporaryDirectory(prefix="mlx-") as folder:
                try:
                    self.store.download(f"{uri}/{path}", Path(folder), cap)
                    name = Path(path).name
                    return os.open(Path(folder) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                except (NotFoundError, FileNotFoundError) as error:
                    raise IntegrityError(
                        f"{printable(path, 200)} of the package is missing in the store."
                    ) from error

        return open_file
