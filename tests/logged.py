"""Requests of a classifier of colours as `mlx serve` logs them, and its package with a baseline."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.tensors import encode_array
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.profile import build_profile
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package, with_file
from mlx_platform.traffic.frame import encode
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import OPEN_SUFFIX, Partition

NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


def named(matrix: np.ndarray, names: str = "x0 x1 x2") -> dict[str, np.ndarray]:
    return {name: matrix[:, index].astype(np.float64) for index, name in enumerate(names.split())}


def with_baseline(package: Package, rows: dict[str, np.ndarray]) -> Package:
    answers = Model.load(package, device="cpu").predict(rows).columns
    watched = InputFeatures(package.spec, package.root)(rows)
    return with_file(package, "baseline.json", build_profile(watched, answers).to_json())


def encoded(arrays: Any) -> dict[str, Any]:
    return {name: encode_array(np.asarray(array)) for name, array in arrays.items()}


def answered(model: Model, columns: dict[str, np.ndarray], number: int, endpoint: str) -> Record:
    feeds = model.encode(columns)
    tensors = model.run(feeds)
    raw = endpoint == "predict"
    return Record(
        request_id=f"r-{number}",
        time=NOON + timedelta(seconds=number),
        seq=number,
        server_id="s",
        boot_id="b",
        model=model.name,
        version=model.version,
        digest=model.digest,
        endpoint=endpoint,
        rows=len(next(iter(columns.values()))),
        inputs=encoded(columns if raw else feeds),
        outputs=encoded(model.decode(tensors) if raw else tensors),
    )


def write_segment(folder: Path, records: list[Record]) -> Path:
    segment = folder / Partition.of(records[0]).path / f"s-b-{records[0].seq:06d}{OPEN_SUFFIX}"
    segment.parent.mkdir(parents=True, exist_ok=True)
    segment.write_bytes(b"".join(map(encode, records)))
    return folder


def write_hours(folder: Path, records: list[Record]) -> Path:
    """A segment for each hour and version, as a server writes them."""
    parts: dict[Partition, list[Record]] = {}
    for record in records:
        parts.setdefault(Partition.of(record), []).append(record)
    for part in parts.values():
        write_segment(folder, part)
    return folder
