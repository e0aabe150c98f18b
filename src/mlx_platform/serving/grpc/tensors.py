"""Tensors in the protocol's messages: raw bytes or typed values in, raw bytes out.

https://github.com/kserve/open-inference-protocol `specification/protocol/inference_grpc.md`. Answers are
always raw, the one form that all clients read for all datatypes.
"""

import math
from collections.abc import Mapping
from typing import Any

from mlx_platform.core.tensors import Array, TensorSpec
from mlx_platform.serving.binary_tensors import read_binary, write_binary
from mlx_platform.serving.grpc.messages import chosen
from mlx_platform.serving.json_tensors import InputReader
from mlx_platform.serving.protocol_v2 import FoundInputs, InferRequest, make_request, refuse_foreign
from mlx_platform.serving.refusal import malformed
from mlx_platform.serving.signature import Signature

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def parse_message(message: Any, signature: Signature) -> InferRequest:
    """Read a `ModelInferRequest`.

    Raises:
        Refusal: 400, naming the input that does not fit.
    """
    found = FoundInputs(signature)
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise malformed("There must be as many raw_input_contents as inputs, or none.")
    for place, tensor in enumerate(message.inputs):
        takes, shape = found.admit(tensor.name, tensor.datatype, list(tensor.shape))
        name = takes.spec.name
        if not raw:
            found.feeds[name], found.cells[name] = _read_contents(tensor, takes, shape)
        elif tensor.HasField("contents"):
            raise malformed(f"Input {name!r} has both contents and raw_input_contents.")
        else:
            found.feeds[name] = read_binary(raw[place], shape, takes.spec)
    outputs = [{"name": output.name, "parameters": _plain(output)} for output in message.outputs]
    parameters = _plain(message)
    refuse_foreign(parameters)
    for tensor in message.inputs:
        refuse_foreign(_plain(tensor))
    feeds = found.complete()
    return make_request(message.id or None, feeds, found.cells, outputs, parameters, signature)


def _plain(owner: Any) -> dict[str, Any]:
    return {name: chosen(value) for name, value in owner.parameters.items()}


def _read_contents(tensor: Any, takes: InputReader, shape: tuple[int, ...]) -> tuple[Array, list[Any]]:
    field = _CONTENTS.get(takes.spec.datatype)
    if field is None:
        raise malformed(f"Input {takes.spec} has no form in contents: send it in raw_input_contents.")
    values = getattr(tensor.contents, field)
    # Counted before millions are made objects, in one go that nobody else can interrupt.
    if len(values) != math.prod(shape):
        raise malformed(f"Input {takes.spec} needs as many values as its shape says.")
    cells = list(values)
    if takes.spec.datatype == "BYTES":
        cells = _as_texts(cells, takes.spec)
    return takes.read_data(cells, shape)


def _as_texts(cells: list[bytes], spec: TensorSpec) -> list[str]:
    try:
        return [cell.decode() for cell in cells]
    except UnicodeDecodeError as error:
        raise malformed(f"Input {spec.name!r} holds bytes that are no UTF-8 text.") from error


def write_message(
    response: Any, call: InferRequest, outputs: Mapping[str, Array], signature: Signature
) -> None:
    """Add the outputs that were asked for to a `ModelInferResponse`; NaN and infinity as they are."""
    for name in call.outputs:
        array = outputs[name]
        tensor = response.outputs.add(name=name, datatype=signature.outputs[name].datatype)
        tensor.shape.extend(array.shape)
        response.raw_output_contents.append(write_binary(array))
