"""Traffic logs of requests as a server answers and records them, at any time and by any version."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.tensors import encode_array
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.traffic.frame import encode
from mlx_platform.traffic.record import Record
from mlx_platform.traffic.segment import OPEN_SUFFIX, Partition


def encoded(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode_array(np.asarray(array)) for name, array in arrays.items()}


def answered(
    model: Model, features: np.ndarray, number: int, time: datetime, *, server: str = "web-1", **more: Any
) -> Record:
    """A request for `x0, x1 ...` [rows, columns] with the model's own answer and all its hashes."""
    columns = {f"x{index}": features[:, index].astype(np.float64) for index in range(features.shape[1])}
    feeds = model.encode(columns)
    tensors = model.run(feeds)
    answers = model.decode(tensors)
    stages = {"raw": columns, "tensor": feeds, "logits": tensors, "output": answers}
    values = {
        "request_id": f"r-{number}",
        "time": time,
        "seq": number,
        "server_id": server,
        "boot_id": "b",
        "model": model.name,
        "version": model.version,
        "digest": model.digest,
        "rows": len(features),
        "inputs": encoded(columns),
        "outputs": encoded(answers),
        "hashes": {stage: stage_hash(arrays) for stage, arrays in stages.items()},
    }
    return Record(**(values | more))


def answered_each(
    model: Model, features: np.ndarray, times: Sequence[datetime], first: int = 0, **more: Any
) -> list[Record]:
    """A request per row, answered in one run; without hashes."""
    columns = {f"x{index}": features[:, index].astype(np.float64) for index in range(features.shape[1])}
    answers = model.predict(columns).columns
    values: dict[str, Any] = {
        "server_id": "web-1",
        "boot_id": "b",
        "model": model.name,
        "version": model.version,
        "digest": model.digest,
        "rows": 1,
    }
    return [
        Record(
            **values
            | {
                "request_id": f"r-{first + row}",
                "time": time,
                "seq": first + row,
                "inputs": encoded({name: column[row : row + 1] for name, column in columns.items()}),
                "outputs": encoded({name: column[row : row + 1] for name, column in answers.items()}),
            }
            | more
        )
        for row, time in enumerate(times)
    ]


def write_log(folder: Path, records: Iterable[Record]) -> Path:
    """Write open segments, each where the server would have it."""
    parts: dict[Path, list[Record]] = defaultdict(list)
    for record in records:
        parts[folder / Partition.of(record).path].append(record)
    for place, each in parts.items():
        place.mkdir(parents=True, exist_ok=True)
        number = len(list(place.iterdir())) + 1
        segment = place / f"s-b-{number:06d}{OPEN_SUFFIX}"
        segment.write_bytes(b"".join(map(encode, each)))
    return folder


def wrong_answer(record: Record) -> Record:
    """What a server with another post-processing would have said."""
    told = record.outputs["confidence"]
    outputs = {**record.outputs, "confidence": {**told, "data": [cell / 2 for cell in told["data"]]}}
    return replace(record, outputs=outputs, hashes={**record.hashes, "output": "0" * 16})
