"""A private copy of a model, brought into the form that calibration and the quantizer need."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.tensors import Array, Tensors
from mlx_platform.quantize.inspect import Inspection, inspect, refuse_unsuitable
from mlx_platform.quantize.runtime import refused, start
from mlx_platform.quantize.storage import SIZE_CAP, size_with_weights
from mlx_platform.quantize.tidy import keep_signature

_PER_CHANNEL_OPSET = 13
_PER_CHANNEL_IR = 8
_SAME = {"rtol": 1e-3, "atol": 1e-5}  # an upgrade may pick another kernel, never another function


@dataclass(frozen=True, slots=True)
class Prepared:
    """`path` is the copy; `source` and `inspection` describe the model as it came and as it is now.

    `original` is the model as it came, and `name` what messages call it.
    """

    path: Path
    original: Path
    name: str
    source: Inspection
    inspection: Inspection
    upgraded_from: int | None


def prepare(
    model_path: Path, folder: Path, probe: Sequence[Tensors], *, threads: int = 1, name: str = ""
) -> Prepared:
    """Copy a model and make it ready: named nodes, opset 13 or newer, constants folded, shapes known.

    Args:
        model_path: the ONNX file; it and its folder are only read.
        folder: a private folder for the copy.
        probe: a few inputs on which an upgraded copy is compared with the original.
        threads: within one operator.
        name: what to call the model in messages; the file's name by default.

    Raises:
        UndecidedError: INT8 does not apply to this model, or it is too large or cannot be upgraded.
    """
    import onnx

    name = name or model_path.name
    _check_size(model_path, name)
    with refused("read"):
        model = onnx.load(model_path)
    before = inspect(model)
    refuse_unsuitable(before, name)
    upgraded = _upgrade(model)
    _name_nodes(upgraded or model)
    plain = folder / "plain.onnx"
    onnx.save(upgraded or model, plain)
    if upgraded is not None:
        _compare(model_path, plain, probe, threads)
    folded = folder / "folded.onnx"
    start(plain, level="basic", threads=threads, save_to=folded)
    ready = _with_shapes(folded, folder)
    _name_nodes(ready)
    _flatten_biases(ready)
    keep_signature(ready, model)
    path = folder / "prepared.onnx"
    onnx.save(ready, path)
    for leftover in (plain, folded):
        leftover.unlink()
    after = inspect(ready)
    refuse_unsuitable(after, name)
    return Prepared(path, model_path, name, before, after, before.opset if upgraded is not None else None)


def _check_size(model_path: Path, name: str) -> None:
    size = size_with_weights(model_path)
    if size > SIZE_CAP:
        raise UndecidedError(
            f"{name} is {size / 1e9:.1f} GB with its weights; up to 2.1 GB can be quantized here."
        )


def _upgrade(model: Any) -> Any | None:
    """A copy at the first opset with scales per channel, or None where the model has it already."""
    import onnx

    if model.ir_version < _PER_CHANNEL_IR:
        constants = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in constants]
        if model.ir_version < 4:
            del model.graph.input[:]
            model.graph.input.extend(inputs)
        model.ir_version = _PER_CHANNEL_IR
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset >= _PER_CHANNEL_OPSET:
        return None
    try:
        upgraded = onnx.version_converter.convert_version(model, _PER_CHANNEL_OPSET)
    except (RuntimeError, onnx.checker.ValidationError) as error:
        raise UndecidedError(
            f"The model is of opset {opset} and cannot be brought to opset {_PER_CHANNEL_OPSET},"
            " which INT8 weights per channel need.",
            hint="Export it again with a newer opset.",
        ) from error
    upgraded.ir_version = _PER_CHANNEL_IR
    return upgraded


def _name_nodes(model: Any) -> None:
    """Give every node of the main graph a name of its own; the quantizer tells nodes apart by it."""
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        name = f"{node.op_type}_{index}"
        while name in taken or name in seen:
            name += "_"
        node.name = name
        seen.add(name)


def _with_shapes(path: Path, folder: Path) -> Any:
    import onnx

    inferred = folder / "inferred.onnx"
    with refused("infer the shapes of"):
        onnx.shape_inference.infer_shapes_path(str(path), str(inferred))
    model = onnx.load(inferred)
    inferred.unlink()
    return model


def _flatten_biases(model: Any) -> None:
    """Write every constant bias of a Gemm as one number per output, with its factor: the same sum.

    The quantizer takes no other form, and divides by `beta` where it should multiply.
    """
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}
    for layer in inspect(model).layers:
        node = nodes[layer.node]
        if layer.operator != "Gemm" or len(node.input) < 3 or not node.input[2]:
            continue
        outputs = constants[layer.weight].dims[layer.axis or 0]
        bias = numpy_helper.to_array(constants[node.input[2]]).reshape(-1)
        beta = next((attribute.f for attribute in node.attribute if attribute.name == "beta"), 1.0)
        if bias.shape == (outputs,) and beta == 1 and len(constants[node.input[2]].dims) == 1:
            continue
        flat = np.ascontiguousarray(np.broadcast_to(bias * np.float32(beta), (outputs,)))
        name = f"{node.name}_bias"
        model.graph.initializer.append(numpy_helper.from_array(flat, name))
        node.input[2] = name
        kept = [attribute for attribute in node.attribute if attribute.name != "beta"]
        del node.attribute[:]
        node.attribute.extend(kept)


def _compare(before: Path, after: Path, probe: Sequence[Tensors], threads: int) -> None:
    sessions = [start(path, threads=threads) for path in (before, after)]
    names = [output.name for output in sessions[0].get_outputs()]
    for feeds in probe:
        for name, old, new in zip(
            names, *(session.run(names, dict(feeds)) for session in sessions), strict=True
        ):
            if not same(old, new):
                raise UndecidedError(
                    f"Bringing the model to opset {_PER_CHANNEL_OPSET} changed its output {name!r}.",
                    hint="Export it again with a newer opset.",
                )


def same(old: Array, new: Array) -> bool:
    """Whether two outputs agree: floats within rounding, everything else exactly."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    if old.dtype.kind == "f":
        return bool(np.allclose(old, new, equal_nan=True, **_SAME))
    return bool((old == new).all())
