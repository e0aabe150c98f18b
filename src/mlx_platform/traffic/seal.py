"""Turn open segments that nobody writes any more into Parquet.

A writer starts this module as a process of its own (`python -m mlx_platform.traffic.seal FOLDER`), so that
neither the work nor the libraries it needs weigh on a server.
"""

import errno
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic import frame
from mlx_platform.traffic.record import STAGES, Record
from mlx_platform.traffic.segment import (
    OPEN_SUFFIX,
    SEALED_SUFFIX,
    fsync_folder,
    is_plain,
    stem_of,
    try_lock,
)

SCHEMA = "mlx.traffic/v1"
SCHEMA_KEY = "mlx.schema"
TORN_KEY = "mlx.torn"
UNREADABLE_KEY = "mlx.unreadable"
JSON_COLUMNS = ("inputs", "outputs", "hashes", "stages", "timings_other")
_LATER = frozenset({"runtime", "stages"})  # columns that segments of earlier releases lack
_PLAIN_COLUMNS = tuple(name for name in Record.__slots__ if name not in {*JSON_COLUMNS, "timings_ms"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROW_GROUP = 4096  # records that sealing and reading hold at a time


@dataclass(slots=True)
class Losses:
    """Lines of an open segment that hold no record: the torn tail, and those whose checksum fails."""

    torn: int = 0
    unreadable: int = 0


def read_open(path: Path, losses: Losses) -> Iterator[Record]:
    """The records of an open segment; what is torn or damaged is counted and left out.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        while line := file.readline(frame.LINE_CAP):
            if not line.endswith(b"\n"):
                while (rest := file.readline(frame.LINE_CAP)) and not rest.endswith(b"\n"):
                    pass
                if not rest:
                    losses.torn += 1
                    return
                losses.unreadable += 1
                continue
            try:
                yield frame.decode(line)
            except UsageError:
                losses.unreadable += 1


def table_schema() -> Any:
    """The Arrow schema of a sealed segment: columns for whatever is one value, JSON text for the rest."""
    import pyarrow as pa

    text, repeated = pa.string(), pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("request_id", text),
            ("time", pa.timestamp("ns", tz="UTC")),
            ("seq", pa.int64()),
            *((name, repeated) for name in ("server_id", "boot_id", "model", "version", "digest")),
            *((name, repeated) for name in ("arm", "endpoint", "cache")),
            ("status", pa.int32()),
            ("rows", pa.int64()),
            ("batch_rows", pa.int64()),
            ("sampling", pa.float64()),
            ("error", text),
            ("truncated", pa.bool_()),
            ("runtime", repeated),
            *((f"{stage}_ms", pa.float64()) for stage in STAGES),
            *((name, text) for name in JSON_COLUMNS),
        ]
    )


def to_table(records: list[Record]) -> Any:
    """Records as an Arrow table of the sealed schema."""
    import pyarrow as pa

    schema = table_schema()
    cells: dict[str, list[Any]] = {
        name: [getattr(record, name) for record in records] for name in _PLAIN_COLUMNS
    }
    for stage in STAGES:
        cells[f"{stage}_ms"] = [record.timings_ms.get(stage) for record in records]
    others = [
        {stage: spent for stage, spent in record.timings_ms.items() if stage not in STAGES}
        for record in records
    ]
    texts = {name: [getattr(record, name) for record in records] for name in JSON_COLUMNS[:-1]}
    for name, values in {**texts, JSON_COLUMNS[-1]: others}.items():
        cells[name] = [orjson.dumps(value) if value else b"" for value in values]
    arrays = []
    for field in schema:
        repeated = pa.types.is_dictionary(field.type)
        array = pa.array(cells[field.name], pa.string() if repeated else field.type)
        arrays.append(array.dictionary_encode() if repeated else array)
    return pa.Table.from_arrays(arrays, schema=schema)


def from_batch(batch: Any) -> Iterator[Record | None]:
    """The records of a record batch; None for a row that holds something else.

    Raises:
        UsageError: the batch has other columns than a sealed segment.
    """
    import pyarrow as pa

    columns: dict[str, list[Any]] = {}
    for field in table_schema():
        index = batch.schema.get_field_index(field.name)
        if index < 0 and field.name in _LATER:
            columns[field.name] = [""] * batch.num_rows
            continue
        if index < 0:
            raise UsageError(f"A sealed segment has no column {field.name!r}.")
        # As integers and plain texts: their conversion to Python is several times as fast.
        kind = pa.string() if pa.types.is_dictionary(field.type) else field.type
        array = batch.column(index).cast(kind)
        columns[field.name] = (array.cast(pa.int64()) if field.name == "time" else array).to_pylist()
    timings = [columns.pop(f"{stage}_ms") for stage in STAGES]
    others = columns.pop("timings_other")
    names = tuple(columns)
    for index, (*spent, cells) in enumerate(zip(*timings, zip(*columns.values(), strict=True), strict=True)):
        yield _from_cells(dict(zip(names, cells, strict=True)), spent, others[index])


def _from_cells(values: dict[str, Any], spent: list[float | None], others: str) -> Record | None:
    try:
        for name in JSON_COLUMNS[:-1]:
            values[name] = orjson.loads(values[name]) if values[name] else {}
        values["time"] = _EPOCH + timedelta(microseconds=values["time"] // 1000)
        timings = {stage: took for stage, took in zip(STAGES, spent, strict=True) if took is not None}
        values["timings_ms"] = timings | orjson.loads(others) if others else timings
        return Record.from_values(values)
    except (UsageError, TypeError, ValueError, OverflowError):
        return None


def seal(path: Path) -> bool:
    """Write the Parquet file of an open segment beside it, then remove the open one.

    Safe to repeat after a crash at any point: the sealed file appears whole, under a name that follows from
    the open file's.

    Returns:
        False when its writer lives, or somebody else has just sealed it.

    Raises:
        OSError: the disk is full, read-only or failing; the open segment stays as it is.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(handle) or not os.fstat(handle).st_nlink:
            return False
        if os.fstat(handle).st_size:
            _write_sealed(path)
        path.unlink()
        fsync_folder(path.parent)
    finally:
        os.close(handle)
    return True


def _write_sealed(path: Path) -> None:
    import pyarrow as pa

    try:
        _write_table(path)
    except pa.ArrowException as error:
        raise OSError(errno.EIO, f"Cannot write Parquet: {error}", str(path)) from error


def _write_table(path: Path) -> None:
    import pyarrow.parquet as pq

    target = path.with_name(stem_of(path) + SEALED_SUFFIX)
    temporary = target.with_name(target.name + ".tmp")
    losses = Losses()
    records = read_open(path, losses)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(temporary, flags, 0o600)
    with os.fdopen(handle, "wb") as file:
        with pq.ParquetWriter(file, table_schema(), compression="zstd", write_page_checksum=True) as writer:
            while group := list(islice(records, ROW_GROUP)):
                writer.write_table(to_table(group))
            # What was cut must stay known: a reader of the sealed file reports it as well.
            writer.add_key_value_metadata(
                {SCHEMA_KEY: SCHEMA, TORN_KEY: str(losses.torn), UNREADABLE_KEY: str(losses.unreadable)}
            )
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def recover(folder: Path) -> int:
    """Seal every orphan below a folder.

    Returns:
        How many were sealed.

    Raises:
        OSError: one could not be sealed; the others still were.
    """
    sealed, failure = 0, None
    for path in sorted(filter(is_plain, folder.rglob(f"*{OPEN_SUFFIX}"))):
        try:
            sealed += seal(path)
        except OSError as error:
            failure = error
    if failure:
        raise failure
    return sealed


def main(folder: Path) -> int:
    """Recover as a background process: the server's threads come first."""
    os.nice(10)
    gc.disable()  # thousands of records at a time and no cycle among them: looking for one doubles the work
    try:
        recover(folder)
    except OSError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
