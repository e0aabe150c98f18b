"""Versions that plain MLflow registered, made into sealed packages without trusting anything about them.

Only ONNX is taken: the files are copied as bytes, checked and run once in a child process, as those of any
other source. The package is kept in the cache together with the digests of the files it was made of; they are
compared each time, so a file that changed in the store makes a new package.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.cache import Opener, PackageCache, folder_opener
from mlx_platform.registry.mlmodel import CAP, network_path
from mlx_platform.registry.runs import RunRecord
from mlx_platform.registry.version import CONTENT, SIZE, Version

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package

_MLMODEL = "MLmodel"
_FILE_CAP = 2 * 1024**3  # bytes
_CHUNK = 1 << 20
_NETWORK = re.compile(r"[\w@+-][\w@+. -]*\.onnx")  # a location that is a file itself
_RUNS = re.compile(r"runs:/([0-9a-f]{32})/(.+)")
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Taken:
    """A model's files in a private folder: the network, and the SHA-256 of everything that was read."""

    network: Path
    files: Mapping[str, str]


class Foreign:
    """The models of one registry that are no packages of ours."""

    def __init__(self, backend: Backend, cache: PackageCache) -> None:
        self._backend = backend
        self._cache = cache

    def package(self, version: Version) -> "Package":
        """The package of a version of plain MLflow, built when it is not here or its bytes have changed.

        Raises:
            UsageError: no ONNX model, or one that cannot be registered either; with the reason.
            IntegrityError: its bytes are gone, or said to be where no model may be read.
            UnavailableError: the store cannot be reached.
        """
        _refuse_bare(version)
        opener, network = self._open(self._backend.reader.location(version.name, version.number), version.ref)
        key = _key(self._backend.shown, version)
        with self._cache.alone(key):
            known = self._cache.recall(key)
            if known and _same(known, opener):
                package = self._cache.find(str(known.get("digest")))
                if package:
                    return package
            return self._build(version, opener, network, key)

    def problem(self, version: Version) -> MlxError | None:
        """Why a version of plain MLflow can be no package, as far as its `MLmodel` says; None otherwise."""
        try:
            _refuse_bare(version)
            location = self._backend.reader.location(version.name, version.number)
            opener, network = self._open(location, version.ref)
            if not network:
                network_path(_read_mlmodel(opener, version.ref)[0], version.ref)
        except MlxError as error:
            return error
        return None

    def take(self, uri: str, folder: Path) -> Taken:
        """Copy the model at `runs:/RUN/path` or `models:/m-...` into a folder that exists.

        Raises:
            NotFoundError: there is no such run or model.
            UsageError: no such URI, or no ONNX model.
        """
        opener, network = self._open(self._location(uri), printable(uri, 200))
        return _take(opener, network, folder, ref=printable(uri, 200))

    def run_of(self, uri: str) -> RunRecord | None:
        """The run that a `runs:/` URI names; None for another URI.

        Raises:
            NotFoundError: there is no such run.
            UsageError: it is no URI of a run.
        """
        return self._run(_parsed(uri)[0]) if uri.startswith("runs:/") else None

    # Within

    def _build(self, version: Version, opener: Opener, network: str, key: str) -> "Package":
        from mlx_platform.inference.build import build_package

        with tempfile.TemporaryDirectory(prefix="mlx-foreign-") as folder:
            source = Path(folder) / "source"
            source.mkdir(mode=0o700)
            taken = _take(opener, network, source, ref=version.ref)
            built = build_package(taken.network, Path(folder) / "package").package
            package = self._cache.put(built.digest, folder_opener(built.root))
        self._cache.keep(key, {"digest": package.digest, "files": dict(taken.files)})
        return package

    def _open(self, location: str, ref: str) -> tuple[Opener, str]:
        """How to read a model's folder, and the network in it where the location names a file itself."""
        if location.startswith("runs:/"):
            try:
                location = self._location(location)
            except UsageError as error:
                raise IntegrityError(
                    f"The registry says that {ref} is at {printable(location, 200)!r}, which is no place."
                ) from error
        if not location:
            raise IntegrityError(f"The registry does not say where the bytes of {ref} are.")
        folder, _, name = location.rpartition("/")
        if _NETWORK.fullmatch(name):
            return self._backend.foreign_opener(folder), name
        return self._backend.foreign_opener(location), ""

    def _location(self, uri: str) -> str:
        if match := _LOGGED.fullmatch(uri):
            return self._backend.store.logged_model(match[1])[1]
        run_id, path = _parsed(uri)
        run = self._run(run_id)
        for model in run.models:
            name, location = self._backend.store.logged_model(model)
            if path == name or path.startswith(f"{name}/"):
                return f"{location.rstrip('/')}{path.removeprefix(name)}"
        return f"{run.artifact_uri.rstrip('/')}/{path}"

    def _run(self, run_id: str) -> RunRecord:
        run = self._backend.store.run(run_id)
        if run is None:
            raise NotFoundError(f"There is no run {run_id} in the registry {self._backend.shown}.")
        return run


def _refuse_bare(version: Version) -> None:
    if CONTENT in version.tags or SIZE in version.tags:
        back = "; ".join(f"mlx rollback {version.name}@{alias}" for alias in version.aliases)
        raise IntegrityError(
            f"{version.ref} carries no digest: somebody took it away after mlx had registered it.",
            hint="Register the model again" + (f", or go back: {back}" if back else "."),
        )


def _parsed(uri: str) -> tuple[str, str]:
    """The run and the path of a `runs:/` URI."""
    from mlx_platform.inference.package import is_plain_path

    match = _RUNS.fullmatch(uri)
    if match is None or not is_plain_path(match[2]):
        raise UsageError(
            f"{printable(uri, 200)!r} names no model of a run.",
            hint="Write runs:/RUN_ID/PATH, as MLflow shows it.",
        )
    return match[1], match[2]


def _take(opener: Opener, network: str, folder: Path, *, ref: str) -> Taken:
    from mlx_platform.inference.graph import read_network
    from mlx_platform.inference.package import MODEL, is_plain_path

    files: dict[str, str] = {}
    if not network:
        content, files[_MLMODEL] = _read_mlmodel(opener, ref)
        network = network_path(content, ref)
    target = folder / MODEL
    files[network] = _copy(opener, network, target, ref=ref)
    beside = network.rpartition("/")[0]
    for name in read_network(target, shown=f"the network of {ref}").external:
        # What is no plain name is left for the build to refuse, as it does for every source.
        if is_plain_path(name) and not (folder / name).exists():
            path = f"{beside}/{name}" if beside else name
            files[path] = _copy(opener, path, folder / name, ref=ref)
    return Taken(target, files)


def _read_mlmodel(opener: Opener, ref: str) -> tuple[bytes, str]:
    try:
        file = _own_file(opener, _MLMODEL, ref)
    except IntegrityError as error:
        raise IntegrityError(
            f"There is no model where the registry says that {ref} is: no {_MLMODEL} can be read there.",
            hint=error.hint
            or "MLflow deletes a model's bytes together with its run; register it again if you have them.",
        ) from error
    with file:
        content = file.read(CAP + 1)
    return content, hashlib.sha256(content).hexdigest()


def _copy(opener: Opener, path: str, target: Path, *, ref: str) -> str:
    """Copy a file into a private folder, and return the SHA-256 of what was copied."""
    digest, size = hashlib.sha256(), 0
    with _own_file(opener, path, ref) as file:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(target, flags, 0o600), "wb") as copy:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > _FILE_CAP:
                    raise UsageError(f"{printable(path, 200)} of {ref} has more than {_FILE_CAP:,} bytes.")
                digest.update(chunk)
                copy.write(chunk)
    return digest.hexdigest()


def _own_file(opener: Opener, path: str, ref: str) -> BinaryIO:
    file = os.fdopen(opener(path), "rb")
    if os.fstat(file.fileno()).st_nlink > 1:
        file.close()
        raise IntegrityError(
            f"{printable(path, 200)} of {ref} is a hard link, perhaps to a file of somebody else.",
            hint="If it is yours, put a copy in its place.",
        )
    return file


def _same(known: Mapping[str, Any], opener: Opener) -> bool:
    """Whether the files that a package was made of are what they were."""
    files = known.get("files")
    if not isinstance(files, dict) or not files:
        return False
    try:
        return all(_digest(opener, str(path)) == digest for path, digest in files.items())
    except IntegrityError:
        return False  # taken anew, which says what is wrong


def _digest(opener: Opener, path: str) -> str:
    with os.fdopen(opener(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _key(registry: str, version: Version) -> str:
    identity = [registry, version.name, version.number, version.source]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
