"""Traces of the Triton Inference Server at the level TENSORS: objects that belong together by their id.

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.traffic.readers.bodies import cell_of
from mlx_platform.traffic.readers.entry import Body, Document, Entry
from mlx_platform.traffic.readers.fields import mapping_of, text_of

_SIDES = {"TENSOR_QUEUE_INPUT": "inputs", "TENSOR_BACKEND_OUTPUT": "outputs"}
_CALLS_HELD = 100_000
"""How many requests may be incomplete at once; a trace never says that one is complete."""


def matches(document: Document) -> bool:
    return "id" in document and (
        ("model_name" in document and "model_version" in document)
        or document.get("activity") in _SIDES
        or _are_stamps(document.get("timestamps"))
    )


def _are_stamps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(stamp, Mapping) and "ns" in stamp for stamp in value)


@dataclass(slots=True)
class _Call:
    model: str = ""
    request_id: str = ""
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    stamps: dict[str, int] = field(default_factory=dict)


class TritonReader:
    """Gathers what a trace tells of each request; a trace knows no time of day.

    A stage of an ensemble is a request of its own, under the name of its model.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, int], _Call] = {}

    def read(self, document: Document, source: str) -> Iterator[Entry]:
        number = document.get("id")
        if type(number) is not int:
            raise UsageError("A traced object has no id.")
        call = self._calls.setdefault((source, number), _Call())
        if "model_name" in document:
            call.model = f"{text_of(document['model_name'])}/{text_of(document.get('model_version'))}"
            call.request_id = text_of(document.get("request_id"))
        side = _SIDES.get(text_of(document.get("activity")))
        if side:
            getattr(call, side).append(_tensor(mapping_of(document.get("tensor"), "tensor")))
        stamps = document.get("timestamps")
        for stamp in stamps if _are_stamps(stamps) and stamps else ():
            if type(stamp["ns"]) is int:
                call.stamps[text_of(stamp.get("name"))] = stamp["ns"]
        if len(self._calls) > _CALLS_HELD:
            oldest = next(iter(self._calls))
            yield from _entry(oldest, self._calls.pop(oldest))

    def finish(self) -> Iterator[Entry]:
        calls, self._calls = self._calls, {}
        for key, call in calls.items():
            yield from _entry(key, call)


def _entry(key: tuple[str, int], call: _Call) -> Iterator[Entry]:
    if not call.inputs and not call.outputs:
        return  # traced without tensors
    start, end = call.stamps.get("REQUEST_START"), call.stamps.get("REQUEST_END")
    yield Entry(
        key=f"{key[0]}#{key[1]}",
        half="both" if call.inputs and call.outputs else "request" if call.inputs else "response",
        request_id=call.request_id or str(key[1]),
        origin=call.model,
        request=Body({"inputs": call.inputs}) if call.inputs else None,
        response=Body({"outputs": call.outputs}) if call.outputs else None,
        latency_ms=(end - start) / 1e6 if start is not None and end is not None else None,
    )


def _tensor(tensor: Document) -> dict[str, Any]:
    """A tensor in the form of the Open Inference Protocol; its numbers stand in text."""
    datatype, data = text_of(tensor.get("dtype")), text_of(tensor.get("data"))
    try:
        shape = [int(size) for size in text_of(tensor.get("shape")).split(",")]
    except ValueError as error:
        raise UsageError("A traced tensor has no shape.") from error
    cells: list[Any] = [cell.strip() for cell in data.split(",")] if data else []
    if datatype != "BYTES":
        cells = [cell_of(cell) for cell in cells]
    if datatype == "BOOL":
        cells = [cell in (1, "true", "True") for cell in cells]
    return {"name": text_of(tensor.get("name")), "datatype": datatype, "shape": shape, "data": cells}
