"""Models on disk: one file while they are small, else with their weights in another file beside it."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import UnavailableError
from mlx_platform.quantize.runtime import refused
from mlx_platform.quantize.tidy import all_graphs

SIZE_CAP = (1 << 31) - (1 << 20)
"""Bytes up to which a model is one file; a protobuf message holds no more than 2 GiB."""
_COPIES = 4  # the copy, its forms on the way, and the result


def load(path: Path, *, weights: bool = True) -> Any:
    """Read an `onnx.ModelProto`, with functions of its own written out where they are called.

    Args:
        path: of the ONNX file.
        weights: whether to read those that are in other files as well.

    Raises:
        UndecidedError: the file is no ONNX model.
    """
    import onnx
    from onnx import external_data_helper, inliner

    with refused("read"):
        model = onnx.load(path, load_external_data=False)
        if model.functions:
            model = inliner.inline_local_functions(model)
        if weights:
            external_data_helper.load_external_data_for_model(model, str(path.parent))
    return model


def save(model: Any, path: Path, *, cap: int = SIZE_CAP) -> None:
    """Write a model, and its weights to `<path>.data` if it is larger than `cap` bytes.

    The weights of the model in memory are emptied in that case.
    """
    import onnx

    # A model beyond the limit cannot even be asked for its size.
    weights = sum(len(tensor.raw_data) for graph in all_graphs(model.graph) for tensor in graph.initializer)
    if weights <= cap and model.ByteSize() <= cap:
        onnx.save(model, path)
        return
    onnx.save_model(
        model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024
    )


def save_showing(model: Any, names: Iterable[str], path: Path, *, cap: int = SIZE_CAP) -> None:
    """Save a model whose runs also give back these inner float tensors; see `save`."""
    import onnx

    shown = {value.name for value in (*model.graph.output, *model.graph.input)}
    for name in dict.fromkeys(names):
        if name not in shown:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    save(model, path, cap=cap)


def remove(path: Path) -> None:
    """Delete a model file and its weights beside it, if they are there."""
    for file in (path, path.with_name(f"{path.name}.data")):
        file.unlink(missing_ok=True)


def files_of(path: Path) -> tuple[Path, ...]:
    """A model file and those that hold its weights.

    Raises:
        UndecidedError: the file is no ONNX model.
    """
    return (path, *dict.fromkeys(path.parent / location for location, _ in _external(path)))


def size_with_weights(path: Path) -> int:
    """Bytes of a model, with those of its weights in other files.

    Raises:
        UndecidedError: the file is no ONNX model.
    """
    return path.stat().st_size + sum(length for _, length in _external(path))


def check_space(folder: Path, size: int) -> None:
    """Stop before a disk fills up.

    Args:
        folder: where the copies of a model go.
        size: of the model in bytes.

    Raises:
        UnavailableError: there is too little space.
    """
    free, needed = shutil.disk_usage(folder).free, _COPIES * size
    if free < needed:
        raise UnavailableError(
            f"Quantizing needs {needed / 1e6:.0f} MB for copies of the model in {folder},"
            f" and {free / 1e6:.0f} MB are free.",
            hint="Make room, or set TMPDIR to a folder on a larger disk.",
        )


def _external(path: Path) -> list[tuple[str, int]]:
    import onnx

    found = []
    graphs = all_graphs(load(path, weights=False).graph)
    for tensor in (tensor for graph in graphs for tensor in graph.initializer):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            found.append((entries["location"], int(entries.get("length", 0))))
    return found
