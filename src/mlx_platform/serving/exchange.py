"""One prediction from arrival to answer: what came in, what went out, how long each stage took."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mlx_platform.core.tensors import Array, Columns, Tensors, encode_array
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.serving.job import Job
from mlx_platform.traffic.record import Record, is_sampled
from mlx_platform.traffic.writer import RECORD_BYTES, TrafficWriter

ARM = "production"
_CELL_BYTES = 32  # what a logged number weighs in the writer's queue


@dataclass(slots=True, eq=False)
class Exchange:
    """A request to predict.

    `started` and `deadline` are on `time.monotonic`; `seconds` holds a value for each stage that was passed.
    With the endpoint `predict`, `inputs` are raw columns and `outputs` answer columns, and the tensors
    between them are in `feeds` and `logits`; with `infer` inputs and outputs are tensors.
    """

    request_id: str
    endpoint: str
    time: datetime
    started: float
    deadline: float
    rows: int = 0
    inputs: Columns = field(default_factory=dict)
    feeds: Tensors = field(default_factory=dict)
    logits: Tensors = field(default_factory=dict)
    outputs: Columns = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    batch_rows: int = 0
    jobs: list[Job] = field(default_factory=list)
    abandoned: bool = False


def write_record(
    exchange: Exchange, model: Model, writer: TrafficWriter, *, status: int, error: str, total: float
) -> None:
    """Hand an exchange to the traffic log; what is not in the sample is only counted.

    Args:
        exchange: what happened.
        model: who answered.
        writer: the log.
        status: the HTTP status.
        error: the sentence that the client got instead of an answer.
        total: seconds from arrival to answer.
    """
    kept = is_sampled(exchange.request_id, writer.sample)
    size = sum(array.size for arrays in (exchange.inputs, exchange.outputs) for array in arrays.values())
    fits = size * _CELL_BYTES <= RECORD_BYTES
    timings = {stage: seconds * 1000 for stage, seconds in exchange.seconds.items()}
    timings["total"] = total * 1000
    record = Record(
        request_id=exchange.request_id,
        time=exchange.time,
        seq=writer.next_seq(),
        server_id=writer.server_id,
        boot_id=writer.boot_id,
        model=model.name,
        version=model.version,
        digest=model.digest,
        arm=ARM,
        endpoint=exchange.endpoint,
        status=status,
        rows=exchange.rows,
        inputs=_encode(exchange.inputs) if kept and fits else {},
        outputs=_encode(exchange.outputs) if kept and fits else {},
        timings_ms=timings,
        batch_rows=exchange.batch_rows,
        hashes=_hashes(exchange) if kept else {},
        sampling=writer.sample,
        error=error,
        truncated=not fits,
    )
    writer.log(record)


def _encode(arrays: Columns) -> dict[str, Mapping[str, object]]:
    return {name: encode_array(array) for name, array in arrays.items()}


def _hashes(exchange: Exchange) -> dict[str, str]:
    stages: dict[str, Mapping[str, Array]] = {"tensor": exchange.feeds, "logits": exchange.logits}
    if exchange.endpoint == "predict":
        stages |= {"raw": exchange.inputs, "output": exchange.outputs}
    return {stage: stage_hash(arrays) for stage, arrays in stages.items() if arrays}
