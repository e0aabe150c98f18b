"""One request as the server saw it, and the rule by which requests are sampled."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Self

from mlx_platform.core.errors import UsageError

STAGES = ("ingress", "queue", "pre", "inference", "post", "egress", "total")
"""The stages whose milliseconds have a column of their own in a sealed segment."""

Encoded = Mapping[str, Mapping[str, Any]]
"""Arrays by name, each as `core.tensors.encode_array` writes it."""


@dataclass(
    slots=True, kw_only=True
)  # not frozen: one is made for each request, which then takes three times as long
class Record:
    """Identity, time, what came in, what went out, and how long it took; never changed.

    `(server_id, boot_id, seq)` is unique: readers remove duplicates by it. With the endpoint `predict` the
    inputs are raw columns and the outputs are answer columns; with `infer` both are the model's tensors.
    `hashes` are 64-bit BLAKE2b digests (hex) of the stages raw, tensor, logits and output;
    `sampling` is the share of requests that were logged; `truncated` says that inputs and outputs were too
    large to keep; `stages` are the tensors behind the hashes, of a share of the requests: by stage, `tensor`
    and `logits`, each as inputs and outputs are; `runtime` is what computed the answer, such as
    `mlx/0.1.0 onnxruntime/1.32.0 cpu`.
    """

    request_id: str
    time: datetime
    seq: int
    server_id: str
    boot_id: str
    model: str
    version: str
    digest: str
    arm: str = "production"
    endpoint: str = "predict"
    status: int = 200
    rows: int = 0
    inputs: Encoded = field(default_factory=dict)
    outputs: Encoded = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    batch_rows: int = 0
    cache: str = "off"
    hashes: Mapping[str, str] = field(default_factory=dict)
    sampling: float = 1.0
    error: str = ""
    truncated: bool = False
    stages: Mapping[str, Encoded] = field(default_factory=dict)
    runtime: str = ""

    @property
    def foreign(self) -> bool:
        """Whether another platform logged it: it then knows no boot of a server of ours."""
        return not self.boot_id

    def without_payload(self) -> Self:
        """The same request without inputs and outputs, marked as truncated."""
        return replace(self, inputs={}, outputs={}, stages={}, truncated=True)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """A record of fields that somebody else wrote, its time already a moment with a zone.

        Raises:
            UsageError: a field has a wrong type or lies out of range.
            TypeError: a field is missing, or not known.
        """
        for name, value in values.items():
            _check(name, value)
        moment = values["time"]
        if moment.tzinfo is None or not 1970 <= moment.year <= 2261:
            # Outside of these years nanoseconds do not fit 64 bits.
            raise UsageError("The time of a record has no zone, or lies outside of 1970 to 2261.")
        timings = values.get("timings_ms", {})
        if any(type(spent) is not float for spent in timings.values()):
            timings = {stage: float(spent) for stage, spent in timings.items() if spent is not None}
        if moment.tzinfo is not UTC:
            moment = moment.astimezone(UTC)
        return cls(**{**values, "time": moment, "timings_ms": timings})

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the JSON form; fields that are not known are left out, missing ones take their default.

        Raises:
            UsageError: a field has a wrong type, or one that identifies the request is missing.
        """
        values = {name: document[name] for name in _TYPES if name in document}
        try:
            return cls.from_values(values | {"time": datetime.fromisoformat(values["time"])})
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"A record cannot be read: {error}.") from error


# Exact types: a bool is no number here, and a subclass cannot come out of JSON.
_KINDS: dict[str, tuple[type, ...]] = {
    "time": (datetime,),
    "seq": (int,),
    "status": (int,),
    "rows": (int,),
    "batch_rows": (int,),
    "inputs": (dict,),
    "outputs": (dict,),
    "timings_ms": (dict,),
    "hashes": (dict,),
    "stages": (dict,),
    "sampling": (float, int),
    "truncated": (bool,),
}
_TYPES = {entry.name: _KINDS.get(entry.name, (str,)) for entry in fields(Record)}


def _check(name: str, value: Any) -> None:
    if type(value) not in _TYPES[name]:
        raise UsageError(f"The field {name!r} of a record is a {type(value).__name__}.")
    if type(value) is int and not 0 <= value < (2**31 if name == "status" else 2**63):
        raise UsageError(f"The field {name!r} of a record is out of range.")


def is_sampled(request_id: str, share: float) -> bool:
    """Whether a request belongs to the sample: the same answer in every process and for every stage."""
    if share >= 1:
        return True
    digest = hashlib.blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def payload_bytes(record: Record) -> int:
    """Roughly the memory that a record holds, without encoding it: what the writer's queue is bounded by."""
    size = 1024 + len(record.error) + len(record.request_id)
    for arrays in (record.inputs, record.outputs, *record.stages.values()):
        for encoded in arrays.values():
            cells = encoded.get("data") or encoded.get("base64_each") or ()
            size += 64 + len(encoded.get("base64", ""))
            if encoded.get("datatype") == "BYTES":
                size += sum(64 + len(cell) if isinstance(cell, str) else 64 for cell in cells)
            else:
                size += 32 * len(cells)  # a list slot and a Python number
    return size
