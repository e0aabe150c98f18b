"""Packages on this machine, by digest: what lies there was verified, and is verified again cheaply."""

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import IntegrityError, MlxError, UnavailableError, UsageError
from mlx_platform.core.files import file_lock, write_atomic
from mlx_platform.core.text import printable

if TYPE_CHECKING:
    from mlx_platform.inference.package import FileEntry, Package

FALLBACK = ".mlx-cache"
_NOTES = "foreign"
_BUILD_SECONDS = 600.0
_NOTE_CAP = 1 << 20
_REREAD_CAP = 64 * 1024 * 1024  # bytes of a package that is read whole each time it is opened
_CHUNK = 1 << 20

Opener = Callable[[str], int]
"""Opens a file of a package, by its path in it, for reading."""


class PackageCache:
    """Folders `packages/<digest>/` in the configured place, or in a fallback where that is read-only."""

    def __init__(self, folder: Path, fallback: Path) -> None:
        self._folder = folder
        self._fallback = fallback

    def find(self, digest: str) -> "Package | None":
        """The package when it is here and sound; a damaged entry is as good as none."""
        for folder in (self._folder, self._fallback):
            entry = folder / "packages" / digest
            if entry.is_dir():
                with suppress(MlxError, OSError):
                    return _open(entry, digest)
        return None

    def put(self, digest: str, opener: Opener) -> "Package":
        """Copy a package in, file by file as its manifest lists them, verifying each.

        The copy is made in a private folder and renamed when it is whole: nobody ever sees half of it.

        Raises:
            IntegrityError: a byte is missing, or is not what the digest says.
            UnavailableError: there is no place to write to.
        """
        problem: OSError | None = None
        for folder in (self._folder, self._fallback):
            try:
                with _workspace(folder) as workspace:
                    return self._put(digest, opener, workspace)
            except OSError as error:
                problem = error
        raise self._no_place(problem)

    def _put(self, digest: str, opener: Opener, workspace: Path) -> "Package":
        from mlx_platform.inference.package import open_package

        copy = workspace / digest
        copy.mkdir(mode=0o700)
        for file in _copy_manifest(copy, digest, opener):
            _copy_file(copy / file.path, file, opener)
        open_package(copy, verify=False)
        entry = workspace.parent / digest
        self._swap(copy, entry, workspace)
        return _open(entry, digest)

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Keep other processes that build the same package out until this one has."""
        folder = self._notes()
        with file_lock(folder / f".{key}.lock", timeout=_BUILD_SECONDS, purpose="building the package"):
            yield

    def keep(self, key: str, note: Mapping[str, Any]) -> None:
        """Keep what a package was made of under a key, in hex.

        Raises:
            UnavailableError: there is no place to write to.
        """
        path = self._notes() / f"{key}.json"
        try:
            write_atomic(path, json.dumps(note), mode=0o600)
        except UsageError as error:
            raise UnavailableError(f"The cache cannot be written: {error.message}") from error

    def recall(self, key: str) -> dict[str, Any] | None:
        """What was kept under a key; None when it is not there, or cannot be read."""
        for folder in (self._folder, self._fallback):
            try:
                with (folder / _NOTES / f"{key}.json").open("rb") as file:
                    note = json.loads(file.read(_NOTE_CAP))
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(note, dict):
                return note
        return None

    def _notes(self) -> Path:
        problem: OSError | None = None
        for folder in (self._folder, self._fallback):
            try:
                with _workspace(folder) as workspace:
                    notes = workspace.parent.parent / _NOTES
                    notes.mkdir(mode=0o700, exist_ok=True)
                    return notes
            except OSError as error:
                problem = error
        raise self._no_place(problem)

    def _swap(self, copy: Path, entry: Path, workspace: Path) -> None:
        for _ in range(10):
            if os.path.lexists(entry):
                with suppress(MlxError, OSError):
                    _open(entry, entry.name)
                    return  # another process was faster, and its copy is as good
                with suppress(FileNotFoundError):
                    entry.rename(tempfile.mkdtemp(dir=workspace) + "/damaged")
            try:
                copy.rename(entry)
            except OSError:
                continue
            return
        raise UnavailableError(f"The cache entry {printable(str(entry))} cannot be replaced.")

    def _no_place(self, problem: OSError | None) -> UnavailableError:
        return UnavailableError(
            f"Neither {printable(str(self._folder))} nor {printable(str(self._fallback))} can be written"
            f"{f': {problem.strerror}' if problem else ''}.",
            hint="Name another place with `[cache] dir` in mlx.toml, or MLX_CACHE_DIR.",
        )


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    packages = folder / "packages"
    packages.mkdir(mode=0o700, parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(dir=packages, prefix=".new-"))
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def folder_opener(root: Path) -> Opener:
    """Open files of a package folder: regular ones inside it, through no link."""

    def open_file(path: str) -> int:
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                *parents, name = path.split("/")
                for parent in parents:
                    inner = os.open(
                        parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
                    )
                    os.close(folder)
                    folder = inner
                handle = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
                )
            finally:
                os.close(folder)
        except OSError as error:
            raise IntegrityError(
                f"{printable(path, 200)} of the package cannot be read in the registry: {error.strerror}."
            ) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise IntegrityError(f"{printable(path, 200)} of the package is no regular file in the registry.")
        return handle

    return open_file


def copy_package(package: "Package", target: Path) -> None:
    """Copy a package's files, and nothing else, into a folder that does not exist yet.

    The copy is made beside the folder and renamed when it is whole.

    Raises:
        UsageError: the folder cannot be written, or the disk is full; nothing is left of the copy.
    """
    from mlx_platform.inference.package import MANIFEST

    workspace: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        workspace = tempfile.mkdtemp(dir=target.parent, prefix=".mlx-new-")
        copy = Path(workspace, "package")  # of the usual mode, while the workspace is private
        for name in (*(file.path for file in package.manifest.files), MANIFEST):
            path = copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package.root / name, path)
        copy.rename(target)
    except OSError as error:
        raise UsageError(
            f"The package cannot be copied to {printable(str(target))}: {error.strerror}.",
            hint="Name a folder that does not exist yet, where there is room for it.",
        ) from error
    finally:
        if workspace:
            shutil.rmtree(workspace, ignore_errors=True)


def _open(entry: Path, digest: str) -> "Package":
    from mlx_platform.inference.package import open_package

    _check_owner(entry)
    package = open_package(entry, verify=False)
    for file in package.manifest.files:
        _check_owner(entry / file.path)
    if package.digest != digest:
        raise IntegrityError(
            f"The cached package has the digest {package.digest}, not {digest}.",
            expected=digest,
            actual=package.digest,
        )
    return open_package(entry) if package.size <= _REREAD_CAP else package


def _check_owner(path: Path) -> None:
    """Refuse what somebody else could change between the check of its digest and its use."""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022:
        raise IntegrityError(f"{printable(str(path))} in the cache is a link, or others may change it.")


def _copy_manifest(copy: Path, digest: str, opener: Opener) -> "tuple[FileEntry, ...]":
    from mlx_platform.inference.package import MANIFEST, MANIFEST_CAP, parse_manifest

    with os.fdopen(opener(MANIFEST), "rb") as file:
        content = file.read(MANIFEST_CAP + 1)
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise IntegrityError(
            f"The package in the registry has the digest {actual}, not {digest} as registered.",
            hint="Its bytes were changed after registration; register the model again.",
            expected=digest,
            actual=actual,
        )
    files = parse_manifest(content).files
    _write(copy / MANIFEST, [content])
    return files


def _copy_file(target: Path, entry: "FileEntry", opener: Opener) -> None:
    digest = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        left = entry.size
        with os.fdopen(opener(entry.path), "rb") as file:
            # One byte more than there should be: a file that grew is a file that was changed.
            while left >= 0 and (chunk := file.read(min(_CHUNK, left + 1))):
                left -= len(chunk)
                digest.update(chunk)
                yield chunk

    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(target, chunks())
    if digest.hexdigest() != entry.sha256:
        raise IntegrityError(
            f"{printable(entry.path, 200)} in the registry is not what was registered: "
            f"SHA-256 {digest.hexdigest()}, not {printable(entry.sha256, 64)}.",
            expected=entry.sha256,
            actual=digest.hexdigest(),
        )


def _write(target: Path, chunks: Iterable[bytes]) -> None:
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
