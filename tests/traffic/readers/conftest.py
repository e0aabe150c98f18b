"""Logs as other platforms write them, in folders of their own."""

import gzip
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.log import LogStats
from mlx_platform.traffic.readers.opening import Reading, open_log
from mlx_platform.traffic.readers.signature import Signature
from mlx_platform.traffic.record import Record

Read = Callable[..., tuple[list[Record], LogStats]]
Write = Callable[..., Path]

MOMENT = datetime(2026, 3, 8, 6, 59, 58, tzinfo=UTC)
SCORER = Signature(
    columns=("age", "visits", "rate", "country"),
    inputs=(TensorSpec("x", "FP32", (None, 4)),),
    outputs=(TensorSpec("score", "FP32", (None, 1)),),
    task="regression",
    model="scorer",
    version="3",
    digest="d" * 64,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "captured"


@pytest.fixture
def write(folder: Path) -> Write:
    """Write documents as lines of JSON, packed as the suffix has it; `tail` follows as it is."""

    def write(documents: Iterable[Any], name: str = "part-0.jsonl", tail: bytes = b"") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = b"".join(json.dumps(document).encode() + b"\n" for document in documents) + tail
        if name.endswith(".gz"):
            content = gzip.compress(content)
        elif name.endswith(".zst"):
            content = pa.compress(content, codec="zstd", asbytes=True)
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def read(folder: Path) -> Read:
    def read(signature: Signature = SCORER, *, path: Path | None = None, **options: Any) -> Any:
        how = {name: options.pop(name) for name in ("format", "zone") if name in options}
        records, stats = open_log(path or folder, Reading(signature=signature, **how), **options)
        return list(records), stats

    return read
