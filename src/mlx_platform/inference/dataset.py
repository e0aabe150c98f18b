"""Data files as columns: Parquet, CSV, JSON Lines, and folders of images."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import NotFoundError, UndecidedError, UsageError
from mlx_platform.core.files import sha256_of
from mlx_platform.core.tensors import Array, text_column
from mlx_platform.core.text import did_you_mean, first_line, listed, printable

_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table in memory.

    Attributes:
        columns: arrays [rows] by name in file order; a list column of one length is [rows, k].
        path: where it was read.
        fingerprint: SHA-256 of the file's bytes; of names and digests for a folder.
    """

    columns: dict[str, Array]
    path: Path
    fingerprint: str

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str) -> Array:
        """The column `name`.

        Raises:
            UsageError: there is none; the hint names the closest and lists all.
        """
        if name not in self.columns:
            names = list(self.columns)
            closest = did_you_mean(name, names)
            hint = closest if closest.startswith("Known") else f"{closest} Columns: {listed(names)}."
            raise UsageError(f"{self.path} has no column {printable(name, 80)!r}.", hint=hint)
        return self.columns[name]

    def features(
        self,
        *,
        label: str | None = None,
        id: str | None = None,  # noqa: A002 - the column has this name everywhere
        weight: str | None = None,
        drop: Iterable[str] = (),
    ) -> dict[str, Array]:
        """The columns without those that are no inputs, in file order."""
        out = {label, id, weight, *drop}
        return {name: column for name, column in self.columns.items() if name not in out}

    def take(self, indices: Any) -> "Dataset":
        """The rows at the indices, or where a mask is true; the fingerprint stays that of the whole."""
        return Dataset(
            {name: column[indices] for name, column in self.columns.items()}, self.path, self.fingerprint
        )


def read_dataset(path: Path) -> Dataset:
    """Read a data file by its suffix, or a folder of images whose sub-folders are the labels.

    Raises:
        NotFoundError: there is no such file.
        UsageError: an unknown suffix, or a file that cannot be read.
        UndecidedError: no rows, so nothing can be said about them.
    """
    if path.is_dir():
        return _image_folder(path)
    if not path.is_file():
        raise NotFoundError(f"There is no data file {path}.")
    if not path.stat().st_size:
        raise UndecidedError(f"{path} is empty.")
    try:
        columns = _columns(_table(path), path)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from error
    if not columns:
        raise UsageError(f"{path} has no columns.")
    dataset = Dataset(columns, path, sha256_of(path))
    if not dataset.rows:
        raise UndecidedError(f"{path} has columns, but no rows.")
    return dataset


def _table(path: Path) -> Any:
    import pyarrow as pa

    readers = {
        ".parquet": _parquet,
        ".pq": _parquet,
        ".csv": _csv,
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"{path} is no kind of data file that can be read.", hint=f"Known suffixes: {', '.join(readers)}."
        )
    try:
        return reader(path)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {first_line(error)}.") from error


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    # A flipped byte would otherwise read as different data, without an error.
    return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True).read()


def _csv(path: Path) -> Any:
    from pyarrow import csv

    return csv.read_csv(path, parse_options=csv.ParseOptions(newlines_in_values=True))


def _jsonl(path: Path) -> Any:
    from pyarrow import json

    # The reader ends the process when a line is valid JSON but no object.
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            start = line.lstrip()[:1]
            if start not in (b"", b"{"):
                raise UsageError(
                    f"{path}: line {number} is no JSON object.", hint="Write one object per line."
                )
    return json.read_json(path)


def _columns(table: Any, path: Path) -> dict[str, Array]:
    names = table.column_names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{path} has two columns {printable(twice, 80)!r}.")
    return {name: _array(table.column(index)) for index, name in enumerate(names)}


def _array(column: Any) -> Array:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(column)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    if pa.types.is_null(kind):
        return text_column([None] * len(column))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        # A missing number arrives as NaN, a missing time as NaT.
        numbers: Array = column.to_numpy()
        return numbers
    if pa.types.is_boolean(kind) and not column.null_count:
        flags: Array = column.to_numpy()
        return flags
    return text_column(column.to_pylist())


def _lists(column: Any) -> Array:
    cells = column.to_pylist()
    lengths = {len(cell) if cell is not None else -1 for cell in cells}
    if len(lengths) == 1 and min(lengths) > 0:
        try:
            matrix = np.array(cells)
        except ValueError:
            return text_column(cells)
        if matrix.dtype.kind in "fiub":
            return matrix
    return text_column(cells)


def _image_folder(path: Path) -> Dataset:
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _IMAGES and file.is_file())
    if not files:
        raise UndecidedError(f"The folder {path} holds no images.")
    names = [file.relative_to(path).as_posix() for file in files]
    contents = [file.read_bytes() for file in files]
    digest = hashlib.sha256()
    for name, content in zip(names, contents, strict=True):
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    columns = {"image": text_column(contents), "path": text_column(names)}
    labels = [name.split("/")[0] if "/" in name else None for name in names]
    if any(labels):
        columns["label"] = text_column(labels)
    return Dataset(columns, path, digest.hexdigest())
