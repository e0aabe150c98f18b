"""The sealed package: files under a manifest of digests, whose own digest names the version."""

import hashlib
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.text import printable
from mlx_platform.inference.cases import GoldenCase, read_golden
from mlx_platform.inference.spec import ModelSpec, parse_spec

MANIFEST = "manifest.json"
MODEL = "model.onnx"
SPEC = "model.toml"
GOLDEN = "golden.jsonl"
BASELINE = "baseline.json"
LOCK = "environment.lock"
MLMODEL = "MLmodel"
_FORMAT = 1
_MAX_FILES = 10_000
MANIFEST_CAP = 16 * 1024 * 1024  # bytes
_CHUNK = 1 << 20
# Files that say where and when a package was made, not what it is.
_CIRCUMSTANCE = {LOCK, BASELINE, GOLDEN}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the package: its path with forward slashes, its size in bytes, its SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a package.

    Attributes:
        files: sorted by path, without the manifest itself.
        generated: those files that do not belong to the content.
        digest: SHA-256 of the manifest's bytes: the version's digest.
        content_digest: the same over the files that are not `generated`.
    """

    files: tuple[FileEntry, ...]
    generated: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no white space."""
        return _canonical(self.files, self.generated)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def content_digest(self) -> str:
        content = tuple(entry for entry in self.files if entry.path not in self.generated)
        return hashlib.sha256(_canonical(content, ())).hexdigest()


def _canonical(files: tuple[FileEntry, ...], generated: tuple[str, ...]) -> bytes:
    document = {
        "format": _FORMAT,
        "files": {entry.path: {"size": entry.size, "sha256": entry.sha256} for entry in files},
        "generated": sorted(generated),
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True)
class Package:
    """A sealed package in a folder. `spec` and the manifest are read once."""

    root: Path
    manifest: Manifest

    @cached_property
    def spec(self) -> ModelSpec:
        text = _read(self.root / SPEC).decode(errors="replace")
        return parse_spec(text, SPEC)

    @cached_property
    def digest(self) -> str:
        return self.manifest.digest

    @cached_property
    def content_digest(self) -> str:
        return self.manifest.content_digest

    @property
    def model_path(self) -> Path:
        return self.root / MODEL

    @property
    def size(self) -> int:
        """Bytes of all files, without the manifest."""
        return sum(entry.size for entry in self.manifest.files)

    @property
    def baseline_path(self) -> Path | None:
        return self.root / BASELINE if self.has(BASELINE) else None

    def has(self, name: str) -> bool:
        return any(entry.path == name for entry in self.manifest.files)

    def golden(self) -> tuple[GoldenCase, ...]:
        """The self-check's cases; () where the package has none."""
        return read_golden(self.root / GOLDEN) if self.has(GOLDEN) else ()

    def read_json(self, name: str) -> Any:
        """The content of a JSON file of the package.

        Raises:
            NotFoundError: the package has no such file.
            IntegrityError: it is no JSON.
        """
        if not self.has(name):
            raise NotFoundError(f"The package has no {printable(name, 80)}.")
        try:
            return orjson.loads(_read(self.root / name))
        except orjson.JSONDecodeError as error:
            raise IntegrityError(f"{name} of the package is no JSON: {error}.") from error


def open_package(root: Path, *, verify: bool = True) -> Package:
    """Open the sealed package in a folder; files that the manifest does not list are ignored.

    Args:
        root: the package's folder.
        verify: read every file and compare its digest; False compares sizes only.

    Raises:
        NotFoundError: the folder holds no package.
        IntegrityError: a file is missing, no regular file, or not what the manifest says.
    """
    path = root / MANIFEST
    if not path.is_file():
        raise NotFoundError(
            f"{root} holds no package: there is no {MANIFEST}.", hint="mlx register makes packages."
        )
    manifest = parse_manifest(_read(path))
    for entry in manifest.files:
        _check(root, entry, verify=verify)
    names = {entry.path for entry in manifest.files}
    for needed in (MODEL, SPEC):
        if needed not in names:
            raise IntegrityError(f"The package in {root} lists no {needed}.")
    return Package(root, manifest)


def seal(root: Path) -> Manifest:
    """Write the manifest over every file that is in the folder.

    Raises:
        UsageError: something in the folder is no regular file, or has a name that a manifest cannot hold.
    """
    entries = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode) or name == MANIFEST:
            continue
        if not stat.S_ISREG(mode) or not is_plain_path(name):
            raise UsageError(
                f"{printable(name)!r} cannot be part of a package: no regular file with a plain name."
            )
        digest, size = _digest(path)
        entries.append(FileEntry(name, size, digest))
    generated = {LOCK, BASELINE} & {entry.path for entry in entries}
    golden = root / GOLDEN
    if golden.is_file() and all(case.generated for case in read_golden(golden)):
        generated.add(GOLDEN)
    manifest = Manifest(tuple(sorted(entries, key=lambda entry: entry.path)), tuple(sorted(generated)))
    write_atomic(root / MANIFEST, manifest.to_bytes())
    return manifest


def with_file(package: Package, name: str, content: bytes) -> Package:
    """The package with one file added or replaced, sealed again in place.

    Raises:
        UsageError: the name cannot be part of a package, or the folder cannot be written.
    """
    if not is_plain_path(name) or name == MANIFEST:
        raise UsageError(f"{printable(name)!r} cannot be added to a package.")
    write_atomic(package.root / name, content)
    return Package(package.root, seal(package.root))


def is_plain_path(name: str) -> bool:
    """Whether a name is a relative path of ordinary parts, the same on every system."""
    parts = name.split("/")
    return (
        0 < len(name) <= 1024
        and name.isprintable()
        and "\\" not in name
        and ":" not in name
        and not any(part in {"", ".", ".."} for part in parts)
    )


def parse_manifest(content: bytes) -> Manifest:
    """Read a manifest's bytes.

    Raises:
        IntegrityError: they are no manifest in its canonical form, or list what no package has.
    """
    try:
        document = orjson.loads(content)
        if document["format"] != _FORMAT:
            raise IntegrityError(f"The {MANIFEST} has a format that this version does not read.")
        entries = tuple(
            FileEntry(path, entry["size"], entry["sha256"])
            for path, entry in sorted(document["files"].items())
        )
        generated = tuple(document["generated"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"The {MANIFEST} cannot be read.") from error
    sound = all(
        is_plain_path(entry.path)
        and entry.path != MANIFEST
        and type(entry.size) is int
        and isinstance(entry.sha256, str)
        for entry in entries
    )
    if not sound or len(entries) > _MAX_FILES or not set(generated) <= _CIRCUMSTANCE:
        raise IntegrityError(f"The {MANIFEST} lists what no package has.")
    manifest = Manifest(entries, generated)
    if manifest.to_bytes() != content:
        raise IntegrityError(f"The {MANIFEST} is not in its canonical form.")
    return manifest


def _check(root: Path, entry: FileEntry, *, verify: bool) -> None:
    path = root / entry.path
    for part in (
        path,
        *(parent for parent in path.parents if parent.is_relative_to(root) and parent != root),
    ):
        if part.is_symlink():
            raise IntegrityError(f"{entry.path} of the package goes through a symbolic link.")
    try:
        status = path.lstat()
    except OSError as error:
        raise IntegrityError(f"{entry.path} of the package is missing.") from error
    if not stat.S_ISREG(status.st_mode):
        raise IntegrityError(f"{entry.path} of the package is no regular file.")
    if status.st_size != entry.size:
        raise IntegrityError(
            f"{entry.path} has {status.st_size:,} bytes, not the {entry.size:,} of the manifest."
        )
    if verify:
        digest, _ = _digest(path)
        if digest != entry.sha256:
            raise IntegrityError(
                f"{entry.path} is not what was sealed: SHA-256 {digest}, not {printable(entry.sha256, 64)}.",
                expected=entry.sha256,
                actual=digest,
            )


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MANIFEST_CAP + 1)
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > MANIFEST_CAP:
        raise IntegrityError(f"{path} has more than {MANIFEST_CAP:,} bytes.")
    return content
