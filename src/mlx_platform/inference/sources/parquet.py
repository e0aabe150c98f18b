"""Parquet files, some rows of a row group at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.inference.sources.arrays import columns_of
from mlx_platform.inference.sources.file import DataFile, reading
from mlx_platform.inference.sources.pages import largest_page
from mlx_platform.inference.sources.source import Source, check_names

ROW_CAP = 64 << 20
"""Bytes that the rows of one column may have on average; more is no table but an attack or an accident."""
_BATCH_BYTES = 64 << 20
_PAGE_CAP = 256 << 20  # bytes of a page, which is always unpacked as a whole
_WINDOW = 1 << 20  # bytes of a column chunk that are held at a time


class ParquetSource(Source):
    """See `Source`. A damaged page is an error, not other numbers, where the file has checksums."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = DataFile(path)
        self.size = self._file.size
        with self._open() as file:
            self.columns = check_names(path, file.schema_arrow.names)
            self.rows = int(file.metadata.num_rows)
            self._texts = _texts(file.schema_arrow)
            if not self.rows:
                raise UndecidedError(f"{path} has columns, but no rows.")
            self._bytes_per_row = [
                _bytes_per_row(path, file.metadata.row_group(index))
                for index in range(file.metadata.num_row_groups)
            ]
        self._pages_checked = False

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        with self._open(dictionaries=self._texts) as file:
            self._check_pages(file.metadata)
            for group, width in enumerate(self._bytes_per_row):
                fitting = max(1, min(rows, int(_BATCH_BYTES / max(width, 1))))
                for batch in file.iter_batches(
                    batch_size=fitting,
                    row_groups=[group],
                    columns=None if columns is None else list(columns),
                ):
                    yield columns_of(batch)
        self._file.check()

    @property
    def fingerprint(self) -> str:
        return self._file.sha256()

    @contextmanager
    def _open(self, dictionaries: Sequence[str] = ()) -> Iterator[Any]:
        import pyarrow.parquet as pq

        self._file.check()
        with (
            reading(self.path),
            pq.ParquetFile(
                self.path,
                page_checksum_verification=True,
                pre_buffer=False,
                buffer_size=_WINDOW,
                # A text that a million rows share is one in the file, and must stay one in memory.
                read_dictionary=list(dictionaries) or None,
            ) as file,
        ):
            try:
                yield file
            except OSError:
                self._file.check()  # says more than the reader does, when the file was cut off meanwhile
                raise

    def _check_pages(self, metadata: Any) -> None:
        if self._pages_checked:
            return
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                if chunk.total_uncompressed_size <= _PAGE_CAP:
                    continue
                with self._file.open() as file:
                    largest = largest_page(file, chunk)
                if largest > _PAGE_CAP:
                    raise UsageError(
                        f"{self.path}: the column {printable(chunk.path_in_schema, 80)!r} has a page that "
                        f"unfolds to {largest / 1e9:.1f} GB.",
                        hint="Write the file again with pages of about a megabyte, as every writer does.",
                    )
        self._pages_checked = True


def _texts(schema: Any) -> list[str]:
    import pyarrow as pa

    return [
        field.name
        for field in schema
        if pa.types.is_string(field.type)
        or pa.types.is_large_string(field.type)
        or pa.types.is_binary(field.type)
    ]


def _bytes_per_row(path: Path, group: Any) -> float:
    """What a row of a row group takes in memory, on average over its rows.

    Raises:
        UsageError: it cannot be the row of a table.
    """
    total = 0.0
    for index in range(group.num_columns):
        chunk = group.column(index)
        # Run lengths hide how many values there are; their number does not.
        width = max(chunk.total_uncompressed_size, 8 * chunk.num_values) / max(group.num_rows, 1)
        if width > ROW_CAP:
            raise UsageError(
                f"{path}: a row of the column {printable(chunk.path_in_schema, 80)!r} takes "
                f"{width / 1e6:,.0f} MB; at most {ROW_CAP / 1e6:.0f} MB are read.",
                hint="Leave out such columns, or store paths in place of contents.",
            )
        total += width
    return total
