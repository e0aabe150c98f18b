"""Data files as columns in memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.tensors import Array
from mlx_platform.inference.sources.arrays import joined
from mlx_platform.inference.sources.opening import open_dataset
from mlx_platform.inference.sources.source import no_column

_BATCH_ROWS = 65_536


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
            raise no_column(self.path, name, list(self.columns))
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
    """Read all rows of a data file or folder; see `open_dataset`.

    Raises:
        NotFoundError: there is no such file.
        UsageError: an unknown suffix, or a file that cannot be read.
        UndecidedError: no rows, so nothing can be said about them.
    """
    source = open_dataset(path)
    parts: dict[str, list[Array]] = {name: [] for name in source.columns}
    for batch in source.batches(_BATCH_ROWS):
        for name, column in batch.items():
            parts[name].append(column)
    # Column by column, so that only one of them is ever held twice.
    columns = {name: joined(parts.pop(name)) for name in source.columns}
    return Dataset(columns, path, source.fingerprint)
