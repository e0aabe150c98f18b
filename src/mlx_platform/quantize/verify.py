"""A quantized model is believed only after it was loaded as serving loads it, and has run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.tensors import Tensors
from mlx_platform.core.text import printable
from mlx_platform.quantize.agreement import relative_error
from mlx_platform.quantize.inspect import inspect, inspect_file, is_kernel
from mlx_platform.quantize.plan import Plan
from mlx_platform.quantize.runtime import refused, start
from mlx_platform.quantize.storage import load, remove, save_showing, size_with_weights
from mlx_platform.quantize.tidy import all_graphs, all_nodes

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
_AT_ONCE = 8  # layers whose outputs are held at the same time


@dataclass(frozen=True, slots=True)
class Verified:
    """What loading and running a quantized model showed.

    Attributes:
        quantized_layers: nodes that read a weight of fewer bits.
        kernels: the integer operators that this processor really runs.
        operators_before: of the original as it is in its file; `operators_after` of the quantized model.
        optimized_before: of the original as it runs, once ONNX Runtime has fused what it can;
            `optimized_after` of the quantized model.
        size_before: bytes with all weights.
        overflow: the relative error that 8-bit sums beyond 16 bits cause on this processor, on the probe.
    """

    quantized_layers: int
    quantize_nodes: int
    dequantize_nodes: int
    kernels: Mapping[str, int]
    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    optimized_before: Mapping[str, int]
    optimized_after: Mapping[str, int]
    size_before: int
    size_after: int
    overflow: float


def verify(
    original: Path, quantized: Path, probe: Sequence[Tensors], folder: Path, *, threads: int = 1
) -> Verified:
    """Load the quantized model with every optimization, run it, and hold it against the original.

    Args:
        original: the float model.
        quantized: the INT8 model.
        probe: a few inputs.
        folder: a private folder for the optimized graph.
        threads: within one operator.

    Raises:
        UndecidedError: it does not load or run, its inputs or outputs differ, an output is not finite where
            the original's is, or nothing in it is quantized.
    """
    session, optimized_before = _started(original, folder, threads)
    quantized_session, optimized_after = _started(quantized, folder, threads)
    _same_signature(session, quantized_session)
    if not probe:
        raise UndecidedError("There is no input to run the quantized model on. Nothing was written.")
    names = [output.name for output in session.get_outputs()]
    exact = start(quantized, threads=threads, exact=True)
    overflow = 0.0
    for feeds in probe:
        with refused("run"):
            old, new, right = (run.run(names, dict(feeds)) for run in (session, quantized_session, exact))
        for name, before, after in zip(names, old, new, strict=True):
            _same_kind(name, before, after)
        overflow = max(overflow, *map(_distance, right, new))
    model = load(quantized, weights=False)
    layers = _narrow_layers(model.graph)
    if not layers:
        raise UndecidedError("Nothing in the model was quantized. Nothing was written.")
    return Verified(
        quantized_layers=layers,
        quantize_nodes=_count(model, "QuantizeLinear"),
        dequantize_nodes=_count(model, "DequantizeLinear"),
        kernels={name: count for name, count in optimized_after.items() if is_kernel(name)},
        operators_before=inspect_file(original).operators,
        operators_after=inspect(model).operators,
        optimized_before=optimized_before,
        optimized_after=optimized_after,
        size_before=size_with_weights(original),
        size_after=size_with_weights(quantized),
        overflow=overflow,
    )


def _started(path: Path, folder: Path, threads: int) -> tuple[Any, Mapping[str, int]]:
    """A session as serving starts it, and the operators that are left once ONNX Runtime has fused them."""
    optimized = folder / "optimized.onnx"
    session = start(path, threads=threads, save_to=optimized)
    operators = inspect_file(optimized).operators
    remove(optimized)
    return session, operators


def _count(model: Any, operator: str) -> int:
    return sum(node.op_type == operator for node in model.graph.node)


def _distance(right: Any, found: Any) -> float:
    """The relative error of an output of floats; nothing for others."""
    is_float = isinstance(right, np.ndarray) and right.dtype.kind == "f" and np.isfinite(right).all()
    return relative_error(right, found) if is_float and right.any() else 0.0


def _same_signature(before: Any, after: Any) -> None:
    def signature(session: Any) -> list[tuple[str, str, list[Any]]]:
        return [
            (value.name, value.type, list(value.shape))
            for value in (*session.get_inputs(), *session.get_outputs())
        ]

    if signature(before) != signature(after):
        raise UndecidedError(
            f"Quantizing changed the model's signature from {printable(str(signature(before)), 300)}"
            f" to {printable(str(signature(after)), 300)}. Nothing was written."
        )


def _same_kind(name: str, before: Any, after: Any) -> None:
    if not isinstance(before, np.ndarray):
        return  # a sequence or map, whose parts are checked as answers
    if before.shape != after.shape or before.dtype != after.dtype:
        raise UndecidedError(
            f"The quantized model's output {printable(name)!r} is {after.dtype} {after.shape}"
            f" where the original's is {before.dtype} {before.shape}. Nothing was written."
        )
    if before.dtype.kind == "f" and np.isfinite(before).all() and not np.isfinite(after).all():
        raise UndecidedError(
            f"The quantized model's output {printable(name)!r} is NaN or infinite. Nothing was written."
        )


def _narrow_layers(graph: Any) -> int:
    """Nodes that read a weight stored in fewer bits than float32, directly or brought back to float."""
    import onnx

    kinds = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.FLOAT16}
    narrow = {
        tensor.name
        for part in all_graphs(graph)
        for tensor in part.initializer
        if tensor.data_type in kinds and len(tensor.dims) > 1
    }
    nodes = list(all_nodes(graph))
    widening = {"DequantizeLinear", "Cast"}
    widened = {node.output[0] for node in nodes if node.op_type in widening and node.input[0] in narrow}
    return sum(
        (node.op_type not in widening and not narrow.isdisjoint(node.input))
        or not widened.isdisjoint(node.input)
        for node in nodes
    )


@dataclass(frozen=True, slots=True)
class LayerError:
    """The relative Euclidean error of a layer's output on the probe."""

    node: str
    operator: str
    error: float


def layer_errors(
    prepared: Path, quantized: Path, chosen: Plan, probe: Sequence[Tensors], folder: Path, *, threads: int = 1
) -> tuple[LayerError, ...]:
    """How much error has gathered at each quantized layer, the worst first."""
    before, after = load(prepared), load(quantized)
    pairs = _pairs(before, after, {layer.node for layer in chosen.layers})
    operators = {layer.node: layer.operator for layer in chosen.layers}
    paths = folder / "layers-before.onnx", folder / "layers-after.onnx"
    save_showing(before, [pair[1] for pair in pairs], paths[0])
    save_showing(after, [pair[2] for pair in pairs], paths[1])
    sessions = [start(path, threads=threads) for path in paths]
    found = []
    for at in range(0, len(pairs), _AT_ONCE):
        group = pairs[at : at + _AT_ONCE]
        errors = _errors_of(group, sessions, probe)
        found += [
            LayerError(pair[0], operators[pair[0]], error) for pair, error in zip(group, errors, strict=True)
        ]
    for path in paths:
        remove(path)
    return tuple(sorted(found, key=lambda entry: -entry.error))


def _errors_of(
    pairs: Sequence[tuple[str, str, str]], sessions: Sequence[Any], probe: Sequence[Tensors]
) -> list[float]:
    """The relative errors of a few layers; only one batch of their outputs is held at a time."""
    sums = np.zeros((len(pairs), 2))
    names = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
    for feeds in probe:
        with refused("run"):
            outputs = [session.run(side, dict(feeds)) for session, side in zip(sessions, names, strict=True)]
        for index, (old, new) in enumerate(zip(*outputs, strict=True)):
            before, after = old.astype(np.float64), new.astype(np.float64)
            sums[index] += ((after - before) ** 2).sum(), (before**2).sum()
    return [math.sqrt(wrong / whole) if whole else (math.inf if wrong else 0.0) for wrong, whole in sums]


def _pairs(before: Any, after: Any, nodes: set[str]) -> list[tuple[str, str, str]]:
    """For each layer: its name and the tensors that hold its output in the two graphs.

    A static layer keeps its name, and gives what the activation gave that was merged into it. Other methods
    replace it by nodes of which the last gives the same tensor.
    """
    old = {name for node in before.graph.node for name in node.output}
    new = {name for node in after.graph.node for name in node.output}
    readers = {node.input[0]: node for node in after.graph.node if node.op_type in _QDQ}
    kept = {node.name: node for node in after.graph.node}
    pairs = []
    for node in before.graph.node:
        if node.name not in nodes:
            continue
        # An LSTM may leave out its first output, and has no name for it then.
        shown = next((name for name in kept.get(node.name, node).output if name), "")
        mine = shown.removesuffix("_QuantizeLinear_Input")
        while shown in readers:  # through the quantizing of a convolution's output
            shown = readers[shown].output[0]
        if shown and mine in old and shown in new:
            pairs.append((node.name, mine, shown))
    return pairs
