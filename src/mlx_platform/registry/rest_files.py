"""The bytes behind a server: through its proxy, on a disk that both see, or straight in their store."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from mlx_platform.core.errors import IntegrityError, UnavailableError
from mlx_platform.core.text import printable
from mlx_platform.registry.address import Address
from mlx_platform.registry.rest_calls import Api

if TYPE_CHECKING:
    from mlx_platform.registry.store import Store

PROXIED = "mlflow-artifacts"


class Files:
    """Moves files between this machine and where a server says that they belong.

    Args:
        api: the server.
        address: its address.
        timeout: seconds for what is small.
        artifacts: URI or folder of the settings; a folder in it may be written to directly.
    """

    def __init__(self, api: Api, address: Address, *, timeout: float, artifacts: str) -> None:
        self._api = api
        self._address = address
        self._timeout = timeout
        self._artifacts = artifacts

    def upload(self, uri: str, folder: Path) -> None:
        """Copy every regular file of a folder below a URI.

        Raises:
            UnavailableError: the server keeps its bytes where only it can write.
        """
        proxied, local = self._proxied(uri), _local(uri)
        if proxied is not None:
            for path, name in _files(folder):
                with path.open("rb") as content:
                    size = os.fstat(content.fileno()).st_size
                    self._api.upload(f"{proxied}/{name}", content, size, "upload the package")
        elif local is not None:
            self._copy(local, folder)
        else:
            self._store().upload(uri, folder)

    def download(self, uri: str, target: Path, cap: int) -> None:
        """Fetch one file of at most `cap` bytes into an existing folder, under its own name.

        Raises:
            NotFoundError: there is no such file.
        """
        proxied = self._proxied(uri)
        if proxied is None:
            self._store().download(uri, target, cap)
            return
        with (target / proxied.rpartition("/")[2]).open("xb") as sink:
            self._api.fetch(proxied, sink, cap, "download a package")

    def remove(self, uri: str) -> None:
        """Delete every file below a URI.

        Raises:
            UnavailableError: the server keeps its bytes where only it can write.
        """
        proxied, local = self._proxied(uri), _local(uri)
        if proxied is not None:
            self._api.remove(proxied, "delete a package")
        elif local is None:
            self._store().remove(uri)
        elif ".." not in local.parts and self._shared(local):
            shutil.rmtree(local, ignore_errors=True)
        else:
            raise self.refuse(uri)

    def writable(self, uri: str) -> bool:
        """Whether there is any way to write below a URI from this machine."""
        local = _local(uri)
        return local is None or self._shared(local)

    def refuse(self, uri: str) -> UnavailableError:
        """The error of a server whose bytes only the server can write."""
        return UnavailableError(
            f"The server {self._address.shown} keeps its bytes in the folder {printable(uri, 200)} "
            "of its own machine, and hands none out.",
            hint="Start it with --artifacts-destination, or name a folder that both see with "
            "`[registry] artifacts`.",
        )

    def _proxied(self, uri: str) -> str | None:
        """The path in the server's artifact store; None for what lies elsewhere."""
        parts = urlsplit(uri)
        here = urlsplit(self._address.uri)
        if parts.scheme in {"http", "https"}:
            raise _other_host(uri)
        if parts.scheme != PROXIED:
            return None
        if parts.netloc and (parts.hostname, parts.port or here.port) != (here.hostname, here.port):
            raise _other_host(uri)
        return parts.path.strip("/")

    def _shared(self, folder: Path) -> bool:
        return "://" not in self._artifacts and folder.resolve().is_relative_to(
            Path(self._artifacts).resolve()
        )

    def _copy(self, target: Path, folder: Path) -> None:
        if not self._shared(target):
            raise self.refuse(str(target))
        try:
            for path, name in _files(folder):
                to = target / name
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
        except OSError as error:
            raise UnavailableError(
                f"The package cannot be copied to {printable(str(target), 200)}: {error.strerror}."
            ) from error

    def _store(self) -> "Store":
        from mlx_platform.registry.store import Store

        return Store(self._address, timeout=self._timeout, artifacts=self._artifacts)


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path, path.relative_to(folder).as_posix()


def _local(uri: str) -> Path | None:
    parts = urlsplit(uri)
    if parts.scheme == "file" and not parts.netloc:
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(uri)


def _other_host(uri: str) -> IntegrityError:
    return IntegrityError(
        f"The registry says that the bytes are at {printable(uri, 200)!r}, which is not its own."
    )
