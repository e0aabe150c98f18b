"""What a network is made of, for comparing two of them: operators, weights, versions. Nothing is run.

Tensors in other files are not loaded: of them the shape and the size are known, not the values.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.inference.graph import parts

_BITS = {
    "UINT4": 4,
    "INT4": 4,
    "FLOAT4E2M1": 4,
    "BOOL": 8,
    "INT8": 8,
    "UINT8": 8,
    "INT16": 16,
    "UINT16": 16,
    "FLOAT16": 16,
    "BFLOAT16": 16,
    "INT32": 32,
    "UINT32": 32,
    "FLOAT": 32,
    "INT64": 64,
    "UINT64": 64,
    "DOUBLE": 64,
    "COMPLEX64": 64,
    "COMPLEX128": 128,
}  # per element; 8-bit floats and whatever comes later count as a byte, text by its length


@dataclass(frozen=True, slots=True)
class Outline:
    """A network in numbers.

    Attributes:
        producer: the program that wrote it, with its version.
        ir_version: version of the file format.
        opsets: version of each set of operators by domain, `ai.onnx` for the default one.
        nodes: how often each operator occurs, those of subgraphs and functions included.
        shapes: how often each operator occurs with exactly these attributes.
        weights: a fingerprint of each named tensor that is kept in the file itself.
        outside: tensors that are kept in other files.
        parameters: elements of all tensors.
        bytes: of all tensors, wherever they are kept.
    """

    producer: str
    ir_version: int
    opsets: Mapping[str, int]
    nodes: Mapping[str, int]
    shapes: Mapping[tuple[str, str], int]
    weights: Mapping[str, str]
    outside: int
    parameters: int
    bytes: int


def read_outline(path: Path) -> Outline:
    """Read an ONNX file without loading the tensors that it keeps elsewhere.

    Raises:
        UsageError: no ONNX model.
    """
    import onnx

    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:  # protobuf's error is a bare Exception of a library that onnx hides
        raise UsageError(f"{printable(str(path))} is no ONNX model that can be read.") from error
    nodes: Counter[str] = Counter()
    shapes: Counter[tuple[str, str]] = Counter()
    weights: dict[str, str] = {}
    outside = parameters = size = 0
    for part in parts(model):
        if isinstance(part, onnx.NodeProto):
            kind = _operator(part)
            nodes[kind] += 1
            shapes[kind, _attributes(part)] += 1
        else:
            count = math.prod(part.dims)
            parameters += count
            size += _bytes(part, count)
            if part.data_location == onnx.TensorProto.EXTERNAL:
                outside += 1
            elif part.name:
                weights[printable(part.name, 200)] = _fingerprint(part)
    return Outline(
        producer=printable(f"{model.producer_name} {model.producer_version}".strip(), 100),
        ir_version=model.ir_version,
        opsets={printable(entry.domain, 80) or "ai.onnx": entry.version for entry in model.opset_import},
        nodes=dict(sorted(nodes.items())),
        shapes=dict(shapes),
        weights=weights,
        outside=outside,
        parameters=parameters,
        bytes=size,
    )


def _operator(node: Any) -> str:
    domain = "" if node.domain in {"", "ai.onnx"} else f"{node.domain}."
    return printable(domain + node.op_type, 120)


def _attributes(node: Any) -> str:
    """A digest of how a node is set up; the tensors in it count as well, the names around it do not."""
    digest = hashlib.sha256()
    for attribute in sorted(node.attribute, key=lambda item: item.name):
        digest.update(attribute.SerializeToString(deterministic=True))
    digest.update(f"{len(node.input)} {len(node.output)}".encode())
    return digest.hexdigest()


def _bytes(tensor: Any, count: int) -> int:
    import onnx

    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        length = next((entry.value for entry in tensor.external_data if entry.key == "length"), "")
        if length.isascii() and length.isdigit() and len(length) < 19:
            return int(length)
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    name = onnx.TensorProto.DataType.Name(tensor.data_type) if _known(tensor.data_type) else ""
    return (count * _BITS.get(name, 8) + 7) // 8


def _known(data_type: int) -> bool:
    import onnx

    return data_type in onnx.TensorProto.DataType.values()


def _fingerprint(tensor: Any) -> str:
    digest = hashlib.sha256(f"{tensor.data_type} {list(tensor.dims)} ".encode())
    if tensor.HasField("raw_data"):
        digest.update(tensor.raw_data)
    else:
        # Numbers in typed fields are compared as they are kept, without what is written around them.
        bare = type(tensor)()
        bare.CopyFrom(tensor)
        bare.name = bare.doc_string = ""
        digest.update(bare.SerializeToString(deterministic=True))
    return digest.hexdigest()
