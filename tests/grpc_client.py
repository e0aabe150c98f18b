"""A client for the gRPC side of a test server, without anybody's generated code."""

from typing import Any

import grpc
import pytest

from mlx_platform.serving.grpc.messages import message_classes

CLASSES = message_classes()


class Client:
    """Calls methods by name: `client("ModelInfer", message)`."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])

    def call(self, method: str, message: Any = None, package: str = "inference", **options: Any) -> Any:
        """The answer and the call, which knows what else the server said."""
        name = method.rpartition("/")[2]
        known = {"inference": "GRPCInferenceService", "grpc.health.v1": "Health"}
        stem = f"{package}.{name}" if package == "inference" else f"{package}.HealthCheck"
        if not isinstance(message, bytes):
            message = (message or CLASSES[f"{stem}Request"]()).SerializeToString()
        multicall = self.channel.unary_unary(f"/{package}.{known[package]}/{name}")
        reply, call = multicall.with_call(message, timeout=options.pop("timeout", 20), **options)
        return CLASSES[f"{stem}Response"].FromString(reply), call

    def __call__(self, method: str, message: Any = None, **options: Any) -> Any:
        return self.call(method, message, **options)[0]

    def refused(self, method: str, message: Any = None, **options: Any) -> grpc.RpcError:
        """The error of a call that must fail."""
        with pytest.raises(grpc.RpcError) as caught:
            self.call(method, message, **options)
        return caught.value


def request(model: str, *tensors: tuple[str, str, list[int], Any], **members: Any) -> Any:
    """A `ModelInferRequest`; a tensor's content is raw bytes, or a field of its contents with the values."""
    message = CLASSES["inference.ModelInferRequest"](model_name=model, **members)
    for name, datatype, shape, content in tensors:
        tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
        if isinstance(content, bytes):
            message.raw_input_contents.append(content)
        elif content is not None:
            field, values = content
            getattr(tensor.contents, field).extend(values)
    return message
