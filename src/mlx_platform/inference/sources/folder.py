"""Folders: data files of one kind that make one table, or images whose sub-folders are their labels."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.core.text import listed, printable
from mlx_platform.inference.sources.formats import ARROW, PARQUET, SUFFIXES, open_file
from mlx_platform.inference.sources.images import IMAGES, ImageSource
from mlx_platform.inference.sources.source import Source


def open_folder(path: Path) -> Source:
    """A folder as one table; files and folders whose names begin with a dot or an underscore are left out.

    Raises:
        UndecidedError: it holds no data.
        UsageError: it holds data of several kinds, or such as cannot be joined.
    """
    found = sorted(file for file in _files(path) if not _hidden(file, path))
    tables = [file for file in found if file.suffix.lower() in SUFFIXES]
    images = [file for file in found if file.suffix.lower() in IMAGES]
    if tables and images:
        raise UsageError(
            f"The folder {path} holds both images and tables, such as {images[0].name} and {tables[0].name}.",
            hint="Name the folder or the file with the rows.",
        )
    if tables:
        loose = [file for file in tables if file.suffix.lower() not in (*PARQUET, *ARROW)]
        if loose:
            raise UsageError(
                f"The folder {path} holds {loose[0].name}; only Parquet and Arrow files are read as parts "
                "of one table.",
                hint="Name one file, or write the rows as Parquet.",
            )
        return FolderSource(path, tables)
    if not images:
        raise UndecidedError(f"The folder {path} holds no images and no data files.")
    return ImageSource(path, images)


def _files(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        # Rows that nobody may read are not to be missed in silence.
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}.") from error

    for place, _folders, names in os.walk(folder, onerror=refuse):
        yield from (file for name in names if (file := Path(place, name)).is_file())


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


class FolderSource(Source):
    """See `Source`. Files follow each other by name; folders named `key=value` are columns of text."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self._parts: list[Source] = []
        for file in files:
            try:
                self._parts.append(open_file(file))
            except UndecidedError:
                continue  # a part without rows is no reason to do without the others
        if not self._parts:
            raise UndecidedError(f"The files in {path} have no rows.")
        self._keys = [_keys(part.path.relative_to(path)) for part in self._parts]
        for (before, known), (part, keys) in pairwise(zip(self._parts, self._keys, strict=True)):
            if set(part.columns) != set(before.columns) or set(keys) != set(known):
                odd = (set(part.columns) | set(keys)) ^ (set(before.columns) | set(known))
                raise UsageError(
                    f"{part.path} and {before.path} have different columns: {listed(sorted(odd), 8)}."
                )
        own = self._parts[0].columns
        self.columns = (*own, *(key for key in self._keys[0] if key not in own))
        counts = [part.rows for part in self._parts]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        self.size = sum(part.size for part in self._parts)

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        names = self.columns if columns is None else tuple(columns)
        kinds: dict[str, tuple[str, Path]] = {}
        done = 0
        for part, keys in zip(self._parts, self._keys, strict=True):
            # One column at least, or nothing would tell how many rows there are.
            own = [name for name in names if name in part.columns] or [part.columns[0]]
            for batch in part.batches(rows, own):
                count = len(next(iter(batch.values())))
                whole = batch | {
                    key: text_column([value] * count)
                    for key, value in keys.items()
                    if key not in part.columns
                }
                self.position = done + part.position
                _check_kinds(kinds, batch, part.path)
                yield {name: whole[name] for name in names}
            done += part.size
            self.position = done

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for part in self._parts:
            name = part.path.relative_to(self.path).as_posix()
            digest.update(f"{name}\0{part.fingerprint}\n".encode())
        return digest.hexdigest()

    def locate(self, row: int) -> str:
        for part in self._parts:
            if part.rows is None:
                break
            if row < part.rows:
                return part.locate(row)
            row -= part.rows
        return super().locate(row)


def _keys(name: Path) -> dict[str, str]:
    pairs = [part.partition("=") for part in name.parts[:-1] if "=" in part]
    return {key: value for key, _, value in pairs if key}


_FAMILIES = {"i": "numbers", "u": "numbers", "f": "numbers", "b": "booleans", "M": "times"}


def _check_kinds(kinds: dict[str, tuple[str, Path]], batch: dict[str, Array], path: Path) -> None:
    for name, column in batch.items():
        family = _FAMILIES.get(column.dtype.kind)
        if family is None:
            continue  # objects: a column without a single value is one of them
        known, where = kinds.setdefault(name, (family, path))
        if known != family:
            raise UsageError(
                f"The column {printable(name, 80)!r} holds {known} in {where}, and {family} in {path}."
            )
