"""Which source reads a file: its suffix says."""

from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.sources.file import Advance
from mlx_platform.inference.sources.source import Source

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
_CSV = (".csv",)
_JSONL = (".jsonl", ".ndjson")
SUFFIXES = (*PARQUET, *_CSV, *_JSONL, *ARROW)


def open_file(path: Path, advance: Advance | None = None) -> Source:
    """Open a data file by its suffix; see `opening.open_dataset`."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES and path.exists():
        raise UsageError(
            f"{path} is no kind of data file that can be read.",
            hint=f"Known suffixes: {', '.join(SUFFIXES)}.",
        )
    if suffix in _CSV:
        from mlx_platform.inference.sources.delimited import CsvSource

        return CsvSource(path, advance)
    if suffix in _JSONL:
        from mlx_platform.inference.sources.jsonlines import JsonLinesSource

        return JsonLinesSource(path, advance)
    if suffix in ARROW:
        from mlx_platform.inference.sources.ipc import ArrowSource

        return ArrowSource(path)
    from mlx_platform.inference.sources.parquet import ParquetSource

    return ParquetSource(path)
