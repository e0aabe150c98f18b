"""The messages of the protocol, with the field numbers that clients know, in a descriptor pool of their own.

Every package that speaks the protocol defines `inference.*` under a file name of its own, and protobuf's
default pool takes such names once per process. In a private pool they get in nobody's way.

Interfaces: https://github.com/kserve/open-inference-protocol
`specification/protocol/open_inference_grpc.proto`, https://github.com/triton-inference-server/common
`protobuf/grpc_service.proto` for its extensions, and https://github.com/grpc/grpc-proto
`grpc/health/v1/health.proto`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

INFERENCE = "inference"
HEALTH = "grpc.health.v1"

# A field as in a .proto file, with `map<Message>` for maps from strings, and `oneof` for members of the only
# such group of a message. What is an enum there is a number here; on the wire these are the same.
_INFERENCE: dict[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live = 1",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready = 1",),
    "ModelReadyRequest": ("string name = 1", "string version = 2"),
    "ModelReadyResponse": ("bool ready = 1",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("string name = 1", "string version = 2", "repeated string extensions = 3"),
    "ModelMetadataRequest": ("string name = 1", "string version = 2"),
    "ModelMetadataResponse": (
        "string name = 1",
        "repeated string versions = 2",
        "string platform = 3",
        "repeated ModelMetadataResponse.TensorMetadata inputs = 4",
        "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
    ),
    "ModelMetadataResponse.TensorMetadata": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
    ),
    "InferParameter": (
        "oneof bool bool_param = 1",
        "oneof int64 int64_param = 2",
        "oneof string string_param = 3",
        "oneof double double_param = 4",
        "oneof uint64 uint64_param = 5",
    ),
    "InferTensorContents": (
        "repeated bool bool_contents = 1",
        "repeated int32 int_contents = 2",
        "repeated int64 int64_contents = 3",
        "repeated uint32 uint_contents = 4",
        "repeated uint64 uint64_contents = 5",
        "repeated float fp32_contents = 6",
        "repeated double fp64_contents = 7",
        "repeated bytes bytes_contents = 8",
    ),
    "ModelInferRequest": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map<InferParameter> parameters = 4",
        "repeated ModelInferRequest.InferInputTensor inputs = 5",
        "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6",
        "repeated bytes raw_input_contents = 7",
    ),
    "ModelInferRequest.InferInputTensor": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
        "map<InferParameter> parameters = 4",
        "InferTensorContents contents = 5",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": (
        "string name = 1",
        "map<InferParameter> parameters = 2",
    ),
    "ModelInferResponse": (
        "string model_name = 1",
        "string model_version = 2",
        "string id = 3",
        "map<InferParameter> parameters = 4",
        "repeated ModelInferResponse.InferOutputTensor outputs = 5",
        "repeated bytes raw_output_contents = 6",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "string name = 1",
        "string datatype = 2",
        "repeated int64 shape = 3",
        "map<InferParameter> parameters = 4",
        "InferTensorContents contents = 5",
    ),
    "ModelStreamInferResponse": ("string error_message = 1", "ModelInferResponse infer_response = 2"),
    "ModelConfigRequest": ("string name = 1", "string version = 2"),
    "ModelConfigResponse": ("ModelConfig config = 1",),
    "ModelConfig": (
        "string name = 1",
        "string platform = 2",
        "ModelVersionPolicy version_policy = 3",
        "int32 max_batch_size = 4",
        "repeated ModelInput input = 5",
        "repeated ModelOutput output = 6",
        "ModelDynamicBatching dynamic_batching = 11",
        "string backend = 17",
    ),
    "ModelVersionPolicy": ("ModelVersionPolicy.Specific specific = 3",),
    "ModelVersionPolicy.Specific": ("repeated int64 versions = 1",),
    "ModelInput": ("string name = 1", "int32 data_type = 2", "repeated int64 dims = 4"),
    "ModelOutput": ("string name = 1", "int32 data_type = 2", "repeated int64 dims = 3"),
    "ModelDynamicBatching": (),
    "ModelStatisticsRequest": ("string name = 1", "string version = 2"),
    "ModelStatisticsResponse": ("repeated ModelStatistics model_stats = 1",),
    "ModelStatistics": (
        "string name = 1",
        "string version = 2",
        "uint64 last_inference = 3",
        "uint64 inference_count = 4",
        "uint64 execution_count = 5",
        "InferStatistics inference_stats = 6",
        "repeated InferBatchStatistics batch_stats = 7",
    ),
    "InferBatchStatistics": (
        "uint64 batch_size = 1",
        "StatisticDuration compute_input = 2",
        "StatisticDuration compute_infer = 3",
        "StatisticDuration compute_output = 4",
    ),
    "InferStatistics": (
        "StatisticDuration success = 1",
        "StatisticDuration fail = 2",
        "StatisticDuration queue = 3",
        "StatisticDuration compute_input = 4",
        "StatisticDuration compute_infer = 5",
        "StatisticDuration compute_output = 6",
        "StatisticDuration cache_hit = 7",
        "StatisticDuration cache_miss = 8",
    ),
    "StatisticDuration": ("uint64 count = 1", "uint64 ns = 2"),
    "RepositoryIndexRequest": ("string repository_name = 1", "bool ready = 2"),
    "RepositoryIndexResponse": ("repeated RepositoryIndexResponse.ModelIndex models = 1",),
    "RepositoryIndexResponse.ModelIndex": (
        "string name = 1",
        "string version = 2",
        "string state = 3",
        "string reason = 4",
    ),
    "ModelRepositoryParameter": (
        "oneof bool bool_param = 1",
        "oneof int64 int64_param = 2",
        "oneof string string_param = 3",
        "oneof bytes bytes_param = 4",
    ),
    "RepositoryModelLoadRequest": (
        "string repository_name = 1",
        "string model_name = 2",
        "map<ModelRepositoryParameter> parameters = 3",
    ),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": (
        "string repository_name = 1",
        "string model_name = 2",
        "map<ModelRepositoryParameter> parameters = 3",
    ),
    "RepositoryModelUnloadResponse": (),
}
_HEALTH: dict[str, tuple[str, ...]] = {
    "HealthCheckRequest": ("string service = 1",),
    "HealthCheckResponse": ("int32 status = 1",),
}
_FIELD = re.compile(r"(?:(oneof|repeated) )?(map<)?([\w.]+)>? (\w+) = (\d+)")
_SCALARS = frozenset(("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes"))
_ONEOF = "choice"


def message_classes() -> dict[str, Any]:
    """A class for each message, by its full name such as `inference.ModelInferRequest`."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    names: list[str] = []
    for package, messages in ((INFERENCE, _INFERENCE), (HEALTH, _HEALTH)):
        pool.AddSerializedFile(_describe_file(package, messages).SerializeToString())
        names += [f"{package}.{name}" for name in messages]
    return {name: GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


def _describe_file(package: str, messages: Mapping[str, Iterable[str]]) -> "FileDescriptorProto":
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto(name=f"mlx/{package}.proto", package=package, syntax="proto3")
    made: dict[str, DescriptorProto] = {}
    for name, fields in messages.items():
        outer, _, inner = name.rpartition(".")
        message = made[name] = made[outer].nested_type.add() if outer else file.message_type.add()
        message.name = inner
        for field in fields:
            _add_field(message, field, package, name)
    return file


def _add_field(message: "DescriptorProto", text: str, package: str, owner: str) -> None:
    (label, mapped, kind, name, number), *_ = _FIELD.findall(text)
    field = message.field.add(name=name, number=int(number), label=1)
    if label == "repeated" or mapped:
        field.label = 3
    if mapped:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for piece in ("string key = 1", f"{kind} value = 2"):
            _add_field(entry, piece, package, owner)
        kind = f"{owner}.{entry.name}"
    if label == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONEOF)
        field.oneof_index = 0
    if kind in _SCALARS:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def chosen(parameter: Any) -> Any:
    """The value of a parameter, whichever kind it is; None when it has none."""
    kind = parameter.WhichOneof(_ONEOF)
    return None if kind is None else getattr(parameter, kind)
