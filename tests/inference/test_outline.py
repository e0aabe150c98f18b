from pathlib import Path

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.outline import read_outline


def save(path: Path, weights: np.ndarray, *, external: bool = False, scale: float = 1.0) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], alpha=scale), helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", weights.shape[0]])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", weights.shape[1]])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    return path


def test_a_network_is_told_in_numbers(tmp_path: Path) -> None:
    outline = read_outline(save(tmp_path / "a.onnx", np.ones((4, 3), np.float32)))

    assert outline.nodes == {"Gemm": 1, "Relu": 1}
    assert (outline.parameters, outline.bytes, outline.outside) == (12, 48, 0)
    assert (outline.opsets, outline.ir_version) == ({"ai.onnx": 18}, 10)
    assert set(outline.weights) == {"w"}


def test_values_and_attributes_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    ones = np.ones((4, 3), np.float32)
    same = read_outline(save(tmp_path / "a.onnx", ones))

    assert read_outline(save(tmp_path / "b.onnx", ones)) == same
    assert read_outline(save(tmp_path / "c.onnx", ones * 2)).weights != same.weights
    assert read_outline(save(tmp_path / "c.onnx", ones * 2)).shapes == same.shapes
    assert read_outline(save(tmp_path / "d.onnx", ones, scale=0.5)).shapes != same.shapes
    assert read_outline(save(tmp_path / "e.onnx", ones.astype(np.float16))).bytes == 24


def test_tensors_in_other_files_are_counted_and_not_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", np.ones((40, 30), np.float32), external=True)
    (tmp_path / "w.bin").unlink()

    outline = read_outline(path)

    assert (outline.outside, outline.parameters, outline.bytes, outline.weights) == (1, 1200, 4800, {})


def test_what_is_no_network_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"\xff" * 100)

    with pytest.raises(UsageError, match="no ONNX model"):
        read_outline(tmp_path / "a.onnx")
