"""What the protocol tells about a served model besides its answers: tensors, configuration, an example."""

import math
from typing import Any

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.core.version import VERSION
from mlx_platform.inference.session import Session
from mlx_platform.serving.signature import Signature

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
)
PLATFORM = "onnxruntime_onnx"
BACKEND = "onnxruntime"
_SHOWN_VALUES = 128
_CONFIG_TYPES = {"BYTES": "STRING"}


def describe_server() -> dict[str, Any]:
    """The protocol's server metadata."""
    return {"name": "mlx", "version": VERSION, "extensions": EXTENSIONS}


def describe_model(name: str, version: str, signature: Signature) -> dict[str, Any]:
    """The protocol's model metadata; a dimension that varies is -1."""
    return {
        "name": name,
        "versions": [version],
        "platform": PLATFORM,
        "inputs": [_describe(spec) for spec in signature.inputs.values()],
        "outputs": [_describe(spec) for spec in signature.outputs.values()],
    }


def describe_device(session: Session) -> dict[str, str]:
    """What a model runs on at the moment, in parameters as the protocol has them: texts."""
    return {"device": session.device, "providers": ",".join(session.providers)}


def _describe(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": _dims(spec)}


def _dims(spec: TensorSpec) -> list[int]:
    return [-1 if dim is None else dim for dim in spec.shape]


def describe_config(name: str, version: str, signature: Signature, max_batch_size: int) -> dict[str, Any]:
    """What the model configuration extension tells of a version.

    https://github.com/triton-inference-server/server `docs/protocol/extension_model_configuration.md`. Where
    requests are batched, the dimensions are those of a row; else `max_batch_size` is 0.
    """
    batched = signature.batched
    document: dict[str, Any] = {
        "name": name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "max_batch_size": max_batch_size if batched else 0,
        "input": [_configured(spec, batched=batched) for spec in signature.inputs.values()],
        "output": [_configured(spec, batched=batched) for spec in signature.outputs.values()],
    }
    if version.isdigit():
        document["version_policy"] = {"specific": {"versions": [int(version)]}}
    if batched:
        document["dynamic_batching"] = {}
    return document


def _configured(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    datatype = f"TYPE_{_CONFIG_TYPES.get(spec.datatype, spec.datatype)}"
    return {"name": spec.name, "data_type": datatype, "dims": _dims(spec)[batched:]}


def example_request(signature: Signature) -> dict[str, Any] | None:
    """A request of zeros that fits the model; None when it would be too long to show."""
    inputs = []
    for spec in signature.inputs.values():
        shape = [1 if dim is None else dim for dim in spec.shape]
        count = math.prod(shape)
        if count > _SHOWN_VALUES or spec.datatype == "FP16":
            return None
        zero: Any = {"b": False, "O": "", "f": 0.0}.get(spec.numpy_type.kind, 0)
        inputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": [zero] * count})
    return {"inputs": inputs}
