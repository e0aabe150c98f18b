"""The files of a foreign log: which there are, and their bytes, unpacked; none is ever changed."""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from mlx_platform.traffic.segment import is_plain

CHUNK = 1 << 20
_NAME = re.compile(r"(?i)(.*\.(jsonl|ndjson|json|log|csv)(\.[0-9]+)?(\.gz|\.zst)?|.*\.(parquet|pq)|[^.]+)")
_TABLES = (".parquet", ".pq")


class TornFileError(Exception):
    """A packed file ends before its content does: it is still being written, or was cut."""


class BrokenFileError(Exception):
    """A file cannot be read on from here."""


def log_files(path: Path) -> list[Path]:
    """The files that a log may consist of, in the order of their names.

    Links, pipes, files of other kinds and whatever begins with a dot or an underscore, as a table's own
    administration does, are left aside.
    """
    if not path.is_dir():
        return [path] if path.is_file() else []
    found = []
    for file in path.rglob("*"):
        inner = file.relative_to(path).parts
        if any(part[0] in "._" for part in inner) or not _NAME.fullmatch(file.name) or not is_plain(file):
            continue
        found.append(file)
    return sorted(found)


def is_table(path: Path) -> bool:
    return path.suffix.lower() in _TABLES


def is_csv(path: Path) -> bool:
    return ".csv" in (suffix.lower() for suffix in path.suffixes)


def chunks(path: Path) -> Iterator[bytes]:
    """The content of a file, unpacked by its first bytes, about a megabyte at a time.

    Raises:
        TornFileError: it is packed and ends too early.
        BrokenFileError: its packing is damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(b"\x1f\x8b"):
        yield from _gunzip(path)
    elif magic == b"\x28\xb5\x2f\xfd":
        yield from _unzstd(path)
    else:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def _gunzip(path: Path) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(31)
    started = False
    with path.open("rb") as file:
        while packed := file.read(CHUNK):
            while packed:
                started = True
                try:
                    content = unpacker.decompress(packed, CHUNK)
                except zlib.error as error:
                    raise BrokenFileError(str(error)) from error
                if content:
                    yield content
                packed = unpacker.unconsumed_tail
                if unpacker.eof:  # files may be put together of several
                    packed, unpacker, started = (
                        unpacker.unused_data.lstrip(b"\0"),
                        zlib.decompressobj(31),
                        False,
                    )
    if started:
        if rest := unpacker.flush():
            yield rest
        raise TornFileError


def _unzstd(path: Path) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression="zstd") as file:
            while content := file.read(CHUNK):
                yield content
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise
        if "runcated" in str(error):
            raise TornFileError from error
        raise BrokenFileError(str(error)) from error
