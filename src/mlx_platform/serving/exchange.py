"""One prediction from arrival to answer: what came in, what went out, how long each stage took."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import numpy as np

from mlx_platform.core.tensors import Array, Columns, Tensors, datatype_of, encode_array
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.serving.identity import Identity
from mlx_platform.serving.job import NORMAL, Job
from mlx_platform.serving.json_tensors import all_finite
from mlx_platform.serving.trace import Trace
from mlx_platform.traffic.record import Record, is_sampled
from mlx_platform.traffic.writer import RECORD_BYTES, TrafficWriter

PRODUCTION = "production"
"""The arm of the version that answers whoever names none."""

CANARY = "canary"
SHADOW = "shadow"
WARM = "warm"  # in memory, and asked only by whoever names the version
_CELL_BYTES = 32  # what a logged number weighs in the writer's queue
_STAGE_CELLS = 65_536  # of tensors that are logged beside inputs and outputs


class Taker(Protocol):
    """Whoever works on a request."""

    def abandon(self, exchange: "Exchange") -> None:
        """Drop what was not started of it."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request to predict.

    `started` and `deadline` are on `time.monotonic`; `seconds` holds a value for each stage that was passed,
    `step_seconds` for each kind of step of the pipeline that ran.
    With the endpoint `predict`, `inputs` are raw columns and `outputs` answer columns, and the tensors
    between them are in `feeds` and `logits`; with `infer` inputs and outputs are tensors, and `cells` hold
    the flat values of inputs that came as JSON.

    `tenant` and `parameters` are what else an answer may depend on, `cache` says what the cache did about
    this request, and `waiting` is the answer of another request that this one waits for.

    `identity` is set where not the version on its own device answers, and `taken_by` where another engine
    works on the request. `arm` is the share of traffic that it belongs to, `pinned` says that the client
    named the version.
    """

    request_id: str
    endpoint: str
    time: datetime
    started: float
    deadline: float
    priority: int = NORMAL
    rows: int = 0
    inputs: Columns = field(default_factory=dict)
    cells: Mapping[str, list[Any]] = field(default_factory=dict)
    feeds: Tensors = field(default_factory=dict)
    logits: Tensors = field(default_factory=dict)
    outputs: Columns = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    batch_rows: int = 0
    jobs: list[Job] = field(default_factory=list)
    computed: bool = False  # whether it had jobs; they are forgotten at its end
    trace: Trace | None = None
    abandoned: bool = False
    tenant: bytes = b""
    parameters: bytes = b""
    skip_cache: bool = False
    cache: str = "off"
    waiting: asyncio.Future[Any] | None = None
    identity: Identity | None = None
    taken_by: "Taker | None" = None
    arm: str = PRODUCTION
    pinned: bool = False


def write_record(
    exchange: Exchange,
    model: Model,
    writer: TrafficWriter,
    *,
    status: int,
    error: str,
    timings_ms: Mapping[str, float],
) -> None:
    """Hand an exchange to the traffic log; what is not in the sample is only counted.

    A request that could not be read has a record as well, without inputs: so there is one for each prediction
    that was asked for, and a log says how often clients got it wrong.

    Args:
        exchange: what happened.
        model: who answered.
        writer: the log.
        status: the HTTP status.
        error: the sentence that the client got instead of an answer.
        timings_ms: milliseconds by stage, and in total.
    """
    kept = is_sampled(exchange.request_id, writer.sample)
    fits = _cells(exchange) * _CELL_BYTES <= RECORD_BYTES
    payload = kept and fits
    author = exchange.identity.model if exchange.identity else model
    record = Record(
        request_id=exchange.request_id,
        time=exchange.time,
        seq=writer.next_seq(),
        server_id=writer.server_id,
        boot_id=writer.boot_id,
        model=author.name,
        version=author.version,
        digest=author.digest,
        arm=exchange.identity.arm if exchange.identity else exchange.arm,
        endpoint=exchange.endpoint,
        status=status,
        rows=exchange.rows,
        inputs={name: _input(exchange, name, array) for name, array in exchange.inputs.items()}
        if payload
        else {},
        outputs={name: _encode(array) for name, array in exchange.outputs.items()} if payload else {},
        timings_ms=timings_ms,
        batch_rows=exchange.batch_rows,
        cache=exchange.cache,
        hashes=_hashes(exchange, payload=payload) if kept else {},
        sampling=writer.sample,
        error=error,
        truncated=not fits,
        stages=_stages(exchange) if payload and is_sampled(exchange.request_id, writer.stages) else {},
        runtime=author.runtime,
    )
    writer.log(record)


def _cells(exchange: Exchange) -> int:
    count = 0
    for array in exchange.inputs.values():
        count += array.size
    for array in exchange.outputs.values():
        count += array.size
    return count


def _input(exchange: Exchange, name: str, array: Array) -> Mapping[str, Any]:
    cells = exchange.cells.get(name)
    if cells is None:
        return _encode(array)
    # What the client wrote reads back as the same array, and is there already.
    return {"datatype": datatype_of(array), "shape": list(array.shape), "data": cells}


def _encode(array: Array) -> Mapping[str, Any]:
    """The same as `encode_array`, sooner for the plain arrays that nearly all answers are."""
    if array.dtype == np.float32 and all_finite(array):
        return {"datatype": "FP32", "shape": list(array.shape), "data": array.reshape(-1).tolist()}
    return encode_array(array)


def _stages(exchange: Exchange) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The tensors behind the hashes, to try stages one by one; none where they are large."""
    stages = {"tensor": exchange.feeds, "logits": exchange.logits}
    if exchange.endpoint != "predict" or not all(stages.values()):
        return {}
    if sum(array.size for arrays in stages.values() for array in arrays.values()) > _STAGE_CELLS:
        return {}
    return {
        stage: {name: _encode(array) for name, array in arrays.items()} for stage, arrays in stages.items()
    }


def _hashes(exchange: Exchange, *, payload: bool) -> dict[str, str]:
    """Hashes of the stages; not of tensors that are logged themselves, bit for bit."""
    if not exchange.inputs or (payload and exchange.endpoint == "infer"):
        return {}
    hashes: dict[str, str] = {}
    if exchange.feeds:
        hashes["tensor"] = stage_hash(exchange.feeds)
    if exchange.logits:
        hashes["logits"] = stage_hash(exchange.logits)
    if exchange.endpoint == "predict":
        hashes["raw"] = stage_hash(exchange.inputs)
        if exchange.outputs:
            hashes["output"] = stage_hash(exchange.outputs)
    return hashes
