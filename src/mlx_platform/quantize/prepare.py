"""A private copy of a model, brought into the form that calibration and the quantizer need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError
from mlx_platform.core.tensors import Tensors
from mlx_platform.core.text import plural, printable
from mlx_platform.quantize.inspect import Inspection, inspect, inspect_file, refuse_unsuitable
from mlx_platform.quantize.runtime import refused, start
from mlx_platform.quantize.storage import SIZE_CAP, check_space, load, remove, save, size_with_weights
from mlx_platform.quantize.tidy import all_graphs, all_nodes, keep_signature, share_equal
from mlx_platform.quantize.widen import is_half, widen

_PER_CHANNEL_OPSET = 13
_PER_CHANNEL_IR = 8
_SUFFIXES = ("_quantized", "_scale", "_zero_point", "_QuantizeLinear_Input", "_DequantizeLinear_Output")
_SAME = {"rtol": 1e-3, "atol": 1e-5}  # an upgrade may pick another kernel, never another function
_NEARLY = {"rtol": 2e-2, "atol": 5e-3}  # float16 rounds what it computes to three digits


@dataclass(frozen=True, slots=True)
class Prepared:
    """`path` is the copy; `source` and `inspection` describe the model as it came and as it is now.

    `original` is the model as it came, and `name` what messages call it. `notes` say what was changed.
    """

    path: Path
    original: Path
    name: str
    source: Inspection
    inspection: Inspection
    upgraded_from: int | None
    notes: tuple[str, ...]


def prepare(
    model_path: Path,
    folder: Path,
    probe: Sequence[Tensors],
    *,
    threads: int = 1,
    name: str = "",
    methods: Sequence[str] = ("static",),
    cap: int = SIZE_CAP,
) -> Prepared:
    """Copy a model and make it ready: float32, opset 13 or newer, named nodes, constants folded, shapes.

    Args:
        model_path: the ONNX file; it and its folder are only read.
        folder: a private folder for the copy.
        probe: a few inputs on which a copy that was changed is compared with the original.
        threads: within one operator.
        name: what to call the model in messages; the file's name by default.
        methods: what the copy is for; see `refuse_unsuitable`.
        cap: bytes above which weights go to a file of their own.

    Raises:
        UndecidedError: no method applies to this model, or it cannot be upgraded.
        UnavailableError: there is no room for copies of it.
    """
    name = name or model_path.name
    check_space(folder, size_with_weights(model_path))
    before = inspect_file(model_path)
    refuse_unsuitable(before, name, methods)
    model = load(model_path)
    notes = _notes(before)
    widened = is_half(model)
    if widened:
        widen(model)
        notes.append("Its float16 weights were brought to float32, in which the processor computes.")
    _lift_constants(model)
    upgraded = _upgrade(model)
    plain, folded, path = (folder / f"{step}.onnx" for step in ("plain", "folded", "prepared"))
    ready = upgraded or model
    _name_nodes(ready)
    signature = type(model)()
    keep_signature(signature, model)
    save(ready, plain, cap=cap)
    if upgraded is not None or widened:
        _compare(model_path, plain, probe, threads, _NEARLY if widened else _SAME)
    start(plain, level="basic", threads=threads, save_to=folded)
    ready = _with_shapes(folded, folder)
    _name_nodes(ready)
    _rename_lookalikes(ready)
    _flatten_biases(ready)
    share_equal(ready.graph)
    keep_signature(ready, signature)
    save(ready, path, cap=cap)
    for leftover in (plain, folded):
        remove(leftover)
    after = inspect_file(path)
    refuse_unsuitable(after, name, methods)
    opset = before.opset if upgraded is not None else None
    return Prepared(path, model_path, name, before, after, opset, tuple(notes))


def _notes(found: Inspection) -> list[str]:
    notes = []
    if found.in_subgraphs:
        notes.append(
            f"{plural(found.in_subgraphs, 'layer')} inside If, Loop or Scan bodies can stay float only."
        )
    if found.foreign:
        foreign = ", ".join(f"{count} {printable(name)}" for name, count in found.foreign.items())
        notes.append(f"Operators outside the ONNX standard stay as they are: {foreign}.")
    return notes


def _upgrade(model: Any) -> Any | None:
    """A copy at the first opset with scales per channel, or None where the model has it already."""
    import onnx
    from google.protobuf.message import EncodeError

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
    except (RuntimeError, ValueError, EncodeError, onnx.checker.ValidationError) as error:
        raise UndecidedError(
            f"The model is of opset {opset} and cannot be brought to opset {_PER_CHANNEL_OPSET},"
            " which INT8 weights per channel need.",
            hint="Export it again with a newer opset.",
        ) from error
    upgraded.ir_version = _PER_CHANNEL_IR
    return upgraded


def _lift_constants(model: Any) -> None:
    """Make initializers of Constant nodes, in inner graphs as well, which no optimization looks into."""
    for graph in all_graphs(model.graph):
        kept = []
        for node in graph.node:
            value = next((each.t for each in node.attribute if each.name == "value"), None)
            if node.op_type != "Constant" or value is None:
                kept.append(node)
                continue
            value.name = node.output[0]
            graph.initializer.append(value)
        del graph.node[:]
        graph.node.extend(kept)


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
    model = load(inferred)
    inferred.unlink()
    return model


def _rename_lookalikes(model: Any) -> None:
    """Rename inner tensors that are called what the quantizer calls a part of another tensor."""
    names = {name for node in all_nodes(model.graph) for name in (*node.input, *node.output)}
    fixed = {value.name for value in (*model.graph.input, *model.graph.output)}
    renamed = {
        name: f"{name}:own"
        for name in names - fixed
        for suffix in _SUFFIXES
        if name.endswith(suffix) and name.removesuffix(suffix) in names
    }
    for node in all_nodes(model.graph):
        for side in (node.input, node.output):
            side[:] = [renamed.get(name, name) for name in side]
    for graph in all_graphs(model.graph):
        for value in (*graph.initializer, *graph.value_info, *graph.input, *graph.output):
            value.name = renamed.get(value.name, value.name)


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


def _compare(
    before: Path, after: Path, probe: Sequence[Tensors], threads: int, tolerance: Mapping[str, float]
) -> None:
    sessions = [start(path, threads=threads) for path in (before, after)]
    names = [output.name for output in sessions[0].get_outputs()]
    for feeds in probe:
        with refused("run"):
            found = [session.run(names, dict(feeds)) for session in sessions]
        for name, old, new in zip(names, *found, strict=True):
            if not same(old, new, tolerance):
                raise UndecidedError(
                    f"Bringing the model to float32 and opset {_PER_CHANNEL_OPSET} changed its output"
                    f" {printable(name)!r}.",
                    hint="Export it again in float32 with a newer opset.",
                )


def same(old: Any, new: Any, tolerance: Mapping[str, float]) -> bool:
    """Whether two outputs agree: floats within a tolerance, everything else exactly."""
    if not isinstance(old, np.ndarray):
        return True  # a sequence or map, whose parts are checked as answers
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    if old.dtype.kind == "f":
        return bool(np.allclose(old, new, equal_nan=True, **tolerance))
    return bool((old == new).all())
