"""Foreign files on their way into a package: told by their bytes, copied only when they are plain files."""

import os
import stat
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable
from mlx_platform.inference.package import (
    BASELINE,
    GOLDEN,
    LOCK,
    MANIFEST,
    MLMODEL,
    MODEL,
    SPEC,
    is_plain_path,
)

_CHUNK = 1 << 20
_OURS = {MODEL, SPEC, GOLDEN, BASELINE, LOCK, MLMODEL, MANIFEST}
_PICKLES = {".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin"}
_MAGIC = (
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file, as joblib writes them"),
    (b"BZh", "a bzip2 file, as joblib writes them"),
    (b"\xfd7zXZ", "an xz file, as joblib writes them"),
    (b"\x78\x9c", "a zlib file, as joblib writes them"),
    (b"\x78\x01", "a zlib file, as joblib writes them"),
    (b"\x78\x5e", "a zlib file, as joblib writes them"),
    (b"\x78\xda", "a zlib file, as joblib writes them"),
)
_SAVE_INSTEAD = "Save the model with skops.io.dump(model, 'model.skops'), or convert it to ONNX."


def source_kind(path: Path) -> Literal["onnx", "skops"]:
    """What a model file is, by its first bytes and its suffix, which must agree.

    Raises:
        UsageError: a pickle in any wrapping, or nothing that can be registered.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{printable(str(path))} is no regular file.")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    for magic, what in _MAGIC:
        if head.startswith(magic):
            raise UsageError(
                f"{path} is {what}; loading it could run any code, so it is not taken.", hint=_SAVE_INSTEAD
            )
    suffix = path.suffix.lower()
    if suffix == ".onnx" and not head.startswith(b"PK"):
        return "onnx"
    if suffix == ".skops" and _is_skops(path):
        return "skops"
    if suffix in _PICKLES:
        raise UsageError(f"{path} is taken for a pickle, which could run any code.", hint=_SAVE_INSTEAD)
    raise UsageError(
        f"{path} is no model that can be taken: an .onnx file, a .skops file, or a folder with a {MODEL}.",
        hint=_SAVE_INSTEAD,
    )


def _is_skops(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "schema.json" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def copy_plain(source: Path, target: Path, *, cap: int, links: bool = False) -> int:
    """Copy one regular file that is its only name, and return its size.

    Args:
        source: followed through no symbolic link at its end.
        target: made anew, in folders that only their owner may enter; a registry may be shared, so the file
            itself can be read.
        cap: bytes.
        links: allow hard links. A file that the user named is copied anyway; one that a package names could
            be a link to something else on this machine.

    Raises:
        NotFoundError: there is no such file.
        UsageError: no regular file, a link, or larger than `cap`.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    shown = printable(str(source))
    try:
        handle = os.open(source, flags)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {shown}.") from error
    except OSError as error:
        raise UsageError(f"{shown} is a link or cannot be read: {error.strerror}.") from error
    try:
        _check_plain(os.fstat(handle), shown, cap=cap, links=links)
    except UsageError:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        size = 0
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as copy:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                if size > cap:
                    raise UsageError(f"{shown} grows while it is read.")
                copy.write(chunk)
    return size


def _check_plain(status: os.stat_result, shown: str, *, cap: int, links: bool) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{shown} is no regular file.")
    if status.st_nlink > 1 and not links:
        raise UsageError(f"{shown} is a hard link, which a package cannot hold.", hint="Copy the file.")
    if status.st_size > cap:
        raise UsageError(f"{shown} has {status.st_size:,} bytes, more than {cap:,}.")


def copy_external(names: Iterable[str], source: Path, out: Path, *, cap: int) -> None:
    """Copy the files that hold a network's tensors from beside it.

    Raises:
        UsageError: a name leaves the folder or takes the place of a file of the package, or is a link.
    """
    for name in names:
        shown = printable(name, 128)
        if not is_plain_path(name) or name in _OURS or name.startswith("assets/"):
            raise UsageError(f"The network keeps tensors in {shown!r}, which is no file inside its folder.")
        _no_linked_folder(source, name)
        if not (out / name).exists():
            copy_plain(source / name, out / name, cap=cap)


def _no_linked_folder(root: Path, name: str) -> None:
    for parent in Path(name).parents:
        if parent != Path() and (root / parent).is_symlink():
            raise UsageError(f"{printable(name, 128)!r} goes through a symbolic link.")


def take_folder(source: Path, out: Path, *, cap: int, max_files: int = 10_000) -> list[str]:
    """Copy what a folder has to give: network, spec, assets, golden cases and baseline.

    Returns:
        The files and folders at its top that were left behind.

    Raises:
        UsageError: no single network, a link, or too many files.
    """
    networks = sorted(path.name for path in source.glob("*.onnx"))
    if MODEL not in networks and len(networks) != 1:
        raise UsageError(
            f"The folder {source} must hold a {MODEL}; it holds {', '.join(networks) or 'no .onnx file'}."
        )
    network = MODEL if MODEL in networks else networks[0]
    source_kind(source / network)
    copy_plain(source / network, out / MODEL, cap=cap)
    for name in (SPEC, GOLDEN, BASELINE):
        if os.path.lexists(source / name):
            copy_plain(source / name, out / name, cap=cap)
    if (source / "assets").is_symlink():
        raise UsageError(f"{source / 'assets'} is a symbolic link, which a package cannot hold.")
    for count, path in enumerate(_files(source / "assets"), 1):
        name = path.relative_to(source).as_posix()
        if count > max_files or not is_plain_path(name):
            raise UsageError(f"The assets hold more than {max_files:,} files, or {printable(name, 128)!r}.")
        copy_plain(path, out / name, cap=cap)
    return sorted(path.name for path in source.iterdir() if path.name not in _OURS | {"assets", network})


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = []
    for root, folders, files in os.walk(folder):
        found += [Path(root, name) for name in (*files, *folders) if not _is_real_folder(Path(root, name))]
    return sorted(found)


def _is_real_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)
