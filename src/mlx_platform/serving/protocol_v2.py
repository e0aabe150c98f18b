"""The Open Inference Protocol, version 2, over HTTP: infer requests and their answers.

https://github.com/kserve/open-inference-protocol `specification/protocol/inference_rest.md`, with the binary
tensor extension. What a client may add (unknown members, parameters) is ignored, what the model needs is
checked before the request may join a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mlx_platform.core.tensors import Array, TensorSpec
from mlx_platform.serving.binary_tensors import BinaryReader, write_binary
from mlx_platform.serving.json_body import parse_object
from mlx_platform.serving.json_tensors import InputReader, write_data
from mlx_platform.serving.priority import priority_of_parameter
from mlx_platform.serving.refusal import malformed
from mlx_platform.serving.signature import Signature

_OURS = frozenset(("timeout", "priority", "binary_data_output"))
# Parameters of extensions that other servers of the protocol have.
_EXTENSIONS = {
    "classification": "classification",
    **dict.fromkeys(("sequence_id", "sequence_start", "sequence_end"), "sequence"),
    "shared_memory_region": "shared memory",
}


# Not frozen: one is made for each request, which then takes four times as long.
@dataclass(slots=True)
class InferRequest:
    """An infer request that fits the model; never changed.

    `cells` hold the values of `feeds` that came as JSON, flat, as the parser made them. `outputs` are the
    names asked for, in order; those in `binary` are to be answered as raw bytes.
    `timeout` is in seconds, `priority` a place in line, both None when the client set none; `parameters` are
    those that mean nothing to this server, as JSON.
    """

    id: str | None
    feeds: dict[str, Array]
    cells: dict[str, list[Any]]
    outputs: tuple[str, ...]
    binary: frozenset[str]
    timeout: float | None
    parameters: bytes = b""
    priority: int | None = None


def parse_infer(body: bytes, header_length: bytes | None, signature: Signature) -> InferRequest:
    """Read the body of an infer request.

    Args:
        body: JSON, followed by raw tensors when there is a header length.
        header_length: the value of `Inference-Header-Content-Length`.
        signature: what the model takes.

    Raises:
        Refusal: 400, naming the member or the input that does not fit.
    """
    reader: BinaryReader | None = None
    if header_length is not None:
        # A few digits at most: anything longer cannot be the length of a part of the body.
        if not header_length.isdigit() or len(header_length) > 12 or not 0 < int(header_length) <= len(body):
            raise malformed("Inference-Header-Content-Length must be a length within the body.")
        length = int(header_length)
        reader = BinaryReader(memoryview(body)[length:])
        body = body[:length]
    document = parse_object(body)
    request_id = document.get("id")
    if request_id is not None and type(request_id) is not str:
        raise malformed("The id must be a string.")
    parameters = _parameters(document)
    found = _read_inputs(document.get("inputs"), signature, reader)
    feeds = found.complete()
    if reader is not None:
        reader.finish()
    return make_request(request_id, feeds, found.cells, document.get("outputs"), parameters, signature)


def make_request(
    request_id: str | None,
    feeds: dict[str, Array],
    cells: dict[str, list[Any]],
    outputs: Any,
    parameters: dict[str, Any],
    signature: Signature,
) -> InferRequest:
    """A request of inputs that were read before, and of plain values for outputs and parameters.

    Raises:
        Refusal: 400; outputs or parameters are not what they should be.
    """
    names, binary = _read_outputs(outputs, signature, parameters)
    if not parameters:
        return InferRequest(request_id, feeds, cells, names, binary, None)
    others = {name: value for name, value in parameters.items() if name not in _OURS}
    return InferRequest(
        request_id,
        feeds,
        cells,
        names,
        binary,
        _timeout(parameters),
        orjson.dumps(others, option=orjson.OPT_SORT_KEYS) if others else b"",
        priority_of_parameter(parameters.get("priority")),
    )


def _parameters(owner: dict[str, Any]) -> dict[str, Any]:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise malformed("The parameters must be an object.")
    refuse_foreign(parameters)
    return parameters


def refuse_foreign(parameters: Mapping[str, Any]) -> None:
    """Refuse what would make another answer of a request, at a server that has that extension.

    Raises:
        Refusal: 400; it is asked for.
    """
    for name in _EXTENSIONS.keys() & parameters.keys():
        if parameters[name]:
            raise malformed(f"This server has no {_EXTENSIONS[name]} extension: leave out {name!r}.")


def _timeout(parameters: dict[str, Any]) -> float | None:
    """The scheduling extension's `timeout`, in microseconds; 0 means none."""
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if type(timeout) is not int or timeout < 0:
        raise malformed("The parameter timeout must be a number of microseconds.")
    return timeout / 1e6 if timeout else None


class FoundInputs:
    """The inputs of a request, each checked against what the model takes; in whatever form they came.

    Attributes:
        feeds: tensors by name, to be added by whoever reads them.
        cells: the flat values of those that came as values.
    """

    def __init__(self, signature: Signature) -> None:
        self.feeds: dict[str, Array] = {}
        self.cells: dict[str, list[Any]] = {}
        self._signature = signature

    def admit(self, name: Any, datatype: Any, shape: Any) -> tuple[InputReader, tuple[int, ...]]:
        """The input that a client means, and the shape of what it sends.

        Raises:
            Refusal: 400; the model takes no such input, or has it already.
        """
        takes = self._signature.readers.get(name) if type(name) is str else None
        if takes is None:
            raise malformed(
                f"The model takes the inputs {_names(self._signature.inputs)}, and there is another one."
            )
        spec = takes.spec
        if spec.name in self.feeds:
            raise malformed(f"Input {spec.name!r} is there twice.")
        if datatype != spec.datatype:
            raise malformed(f"Input {spec.name!r} takes {spec.datatype}.")
        return takes, takes.read_shape(shape)

    def complete(self) -> dict[str, Array]:
        """All inputs, in the model's order: so requests that name them in another one can share a batch.

        Raises:
            Refusal: 400; one is missing.
        """
        inputs = self._signature.inputs
        if len(self.feeds) != len(inputs):
            missing = next(name for name in inputs if name not in self.feeds)
            raise malformed(f"Input {missing!r} is missing.")
        return {name: self.feeds[name] for name in inputs}


def _read_inputs(inputs: Any, signature: Signature, reader: BinaryReader | None) -> FoundInputs:
    if type(inputs) is not list:
        raise malformed("The request must have a list of inputs.")
    found = FoundInputs(signature)
    for tensor in inputs:
        if type(tensor) is not dict:
            raise malformed("Each input must be an object with name, shape, datatype and data.")
        takes, shape = found.admit(tensor.get("name"), tensor.get("datatype"), tensor.get("shape"))
        name = takes.spec.name
        parameters = _parameters(tensor)
        if "binary_data_size" in parameters:
            found.feeds[name] = _read_binary(tensor, parameters, shape, takes.spec, reader)
        else:
            found.feeds[name], found.cells[name] = takes.read_data(tensor.get("data"), shape)
    return found


def _read_binary(
    tensor: dict[str, Any],
    parameters: dict[str, Any],
    shape: tuple[int, ...],
    spec: TensorSpec,
    reader: BinaryReader | None,
) -> Array:
    if reader is None:
        raise malformed("Binary tensor data need the header Inference-Header-Content-Length.")
    if "data" in tensor:
        raise malformed(f"Input {spec.name!r} has both data and binary_data_size.")
    return reader.take(parameters["binary_data_size"], shape, spec)


def _read_outputs(
    outputs: Any, signature: Signature, parameters: dict[str, Any]
) -> tuple[tuple[str, ...], frozenset[str]]:
    everything_binary = parameters.get("binary_data_output") is True
    if not outputs and (outputs is None or type(outputs) is list):
        names = tuple(signature.outputs)
        return names, frozenset(names if everything_binary else ())
    if type(outputs) is not list:
        raise malformed("The outputs must be a list.")
    wanted: dict[str, bool] = {}
    for output in outputs:
        name = output.get("name") if type(output) is dict else None
        if type(name) is not str or name not in signature.outputs:
            raise malformed(f"The model gives the outputs {_names(signature.outputs)}: ask for some of them.")
        if name in wanted:
            raise malformed(f"Output {name!r} is asked for twice.")
        wanted[name] = _parameters(output).get("binary_data", everything_binary) is True
    return tuple(wanted), frozenset(name for name, binary in wanted.items() if binary)


def _names(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(repr(name) for name in specs)


def render_infer(
    request: InferRequest,
    outputs: Mapping[str, Array],
    signature: Signature,
    head: Mapping[str, Any],
    *,
    nulls: bool = False,
) -> tuple[bytes, int | None]:
    """Write an answer: its bytes, and the length of the JSON in front when tensors follow it.

    Args:
        request: what was asked.
        outputs: the model's outputs by name.
        signature: what the model gives.
        head: `model_name` and `model_version`.
        nulls: NaN and infinity are null in JSON, and the parameter `nonfinite` says so.

    Raises:
        Refusal: 422; an output that JSON cannot carry.
    """
    document = dict(head)
    if request.id is not None:
        document["id"] = request.id
    tensors: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name in request.outputs:
        array = outputs[name]
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": signature.outputs[name].datatype,
            "shape": list(array.shape),
        }
        if name in request.binary:
            raw.append(write_binary(array))
            tensor["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            data = tensor["data"] = write_data(array, name, nulls=nulls)
            if nulls and type(data) is list and array.dtype.kind == "f":
                document["parameters"] = {**document.get("parameters", {}), "nonfinite": True}
        tensors.append(tensor)
    document["outputs"] = tensors
    header = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if not request.binary:
        return header, None
    return b"".join((header, *raw)), len(header)
