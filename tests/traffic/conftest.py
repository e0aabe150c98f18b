"""Records to write, and writers that end with their test."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_platform.core.tensors import encode_array, text_column
from mlx_platform.traffic import frame, seal
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import OpenSegment, Partition
from mlx_platform.traffic.sink import Sink
from mlx_platform.traffic.writer import TrafficWriter

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)

MakeRecord = Callable[..., Record]
MakeWriter = Callable[..., TrafficWriter]
WriteSegment = Callable[..., Path]


def make_record(seq: int = 1, **fields: Any) -> Record:
    values: dict[str, Any] = {
        "request_id": f"r-{seq}",
        "time": NOON + timedelta(seconds=seq),
        "seq": seq,
        "server_id": "host",
        "boot_id": "b1",
        "model": "digits",
        "version": "3",
        "digest": "d" * 64,
        "rows": 1,
        "inputs": {"x": encode_array(np.array([0.1 * seq]))},
        "outputs": {"label": encode_array(text_column(["a"]))},
        "timings_ms": {"total": 1.5, "queue": 0.25, "wait_for_friend": 7.0},
        "hashes": {"raw": "00ff"},
    }
    return Record(**(values | fields))


@pytest.fixture
def record() -> MakeRecord:
    return make_record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "traffic"


@pytest.fixture
def write_segment(folder: Path) -> WriteSegment:
    """Write an open segment whose writer is gone, with anything after its records."""

    def write(records: list[Record], tail: bytes = b"", *, owner: str = "host-b1") -> Path:
        segment = OpenSegment.create(folder, Partition.of(records[0]), owner, iter(range(1, 100)))
        for entry in records:
            segment.append(frame.encode(entry))
        segment.close()
        with segment.path.open("ab") as file:
            file.write(tail)
        return segment.path

    return write


@pytest.fixture
def sealed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal in this process instead of in one of its own, which takes a second to start."""

    def seal_orphans(sink: Sink) -> None:
        seal.recover(sink._folder)

    monkeypatch.setattr(Sink, "seal_orphans", seal_orphans)


@pytest.fixture
def writer(folder: Path, sealed_at_once: None) -> Iterator[MakeWriter]:
    made: list[TrafficWriter] = []

    def make(**options: Any) -> TrafficWriter:
        values: dict[str, Any] = {
            "model": "digits",
            "version": "3",
            "queue_bytes": 1 << 26,
            "disk_bytes": 1 << 30,
            "clock": lambda: NOON,
        }
        where = options.pop("folder", folder)
        made.append(TrafficWriter(where, **(values | options)))
        return made[-1]

    yield make
    for each in made:
        each.close(timeout=30)
