"""Arrow files and streams (Feather version 2, what `datasets` saves), one record batch at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.inference.sources.arrays import columns_of
from mlx_platform.inference.sources.file import DataFile, reading
from mlx_platform.inference.sources.source import Source, check_names

_FILE_MAGIC = b"ARROW1"
_OLD_FEATHER = b"FEA1"
_SLICE_BYTES = 64 << 20


class ArrowSource(Source):
    """See `Source`. Never mapped into memory: a file that is cut off meanwhile would end the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = DataFile(path)
        self.size = self._file.size
        with self._file.open() as file:
            start = file.read(len(_FILE_MAGIC))
        if start.startswith(_OLD_FEATHER):
            raise UsageError(
                f"{path} is a Feather file of version 1.", hint="Write it again with a current pyarrow."
            )
        self._is_file = start == _FILE_MAGIC
        self.rows = None
        with self._open() as (_raw, reader):
            self.columns = check_names(path, reader.schema.names)
            if not any(batch.num_rows for batch in self._record_batches(reader)):
                raise UndecidedError(f"{path} has columns, but no rows.")

    def batches(self, rows: int, columns: Sequence[str] | None = None) -> Iterator[dict[str, Array]]:
        self.position = 0
        with self._open(columns) as (raw, reader):
            for place, whole in enumerate(self._record_batches(reader), 1):
                step = rows
                if whole.num_rows:
                    step = max(1, min(rows, int(_SLICE_BYTES * whole.num_rows / max(whole.nbytes, 1))))
                for start in range(0, whole.num_rows, step):
                    yield columns_of(whole.slice(start, step))
                # Batches of a file are read wherever they lie, so its cursor says nothing.
                self.position = (
                    self.size * place // reader.num_record_batches if self._is_file else raw.tell()
                )
        self._file.check()

    @property
    def fingerprint(self) -> str:
        return self._file.sha256()

    def _record_batches(self, reader: Any) -> Iterator[Any]:
        if not self._is_file:
            yield from reader
            return
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)

    @contextmanager
    def _open(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        import pyarrow as pa

        self._file.check()
        places = None if columns is None else sorted(self.columns.index(name) for name in columns)
        options = pa.ipc.IpcReadOptions(included_fields=places, ensure_alignment=pa.ipc.Alignment.Any)
        opener = pa.ipc.open_file if self._is_file else pa.ipc.open_stream
        with (
            reading(self.path),
            pa.OSFile(str(self.path)) as raw,
            opener(raw, options=options) as reader,
        ):
            try:
                yield raw, reader
            except (OSError, pa.ArrowException):
                self._file.check()
                raise
