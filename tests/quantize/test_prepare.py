import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mlx_platform.core.errors import UnavailableError, UndecidedError
from mlx_platform.quantize.prepare import prepare
from mlx_platform.quantize.runtime import start

X = np.random.default_rng(3).normal(size=(5, 16)).astype(np.float32)


def outputs(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return start(path).run(None, feeds)


def test_the_copy_computes_what_the_original_computes(perceptron: Path, digits, tmp_path: Path) -> None:
    probe = digits.feeds()[:2]
    prepared = prepare(perceptron, tmp_path, probe)

    for feeds in probe:
        for old, new in zip(outputs(perceptron, feeds), outputs(prepared.path, feeds), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-6)


def test_matmul_and_add_become_one_layer_with_a_flat_bias(perceptron: Path, tmp_path: Path) -> None:
    prepared = prepare(perceptron, tmp_path, [])

    model = onnx.load(prepared.path)
    biases = {node.input[2] for node in model.graph.node if node.op_type == "Gemm"}
    assert [layer.operator for layer in prepared.inspection.layers] == ["Gemm"] * 3
    assert [len(tensor.dims) for tensor in model.graph.initializer if tensor.name in biases] == [1, 1, 1]


def test_a_bias_with_a_factor_is_multiplied_out(save_model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(16, 8)).astype(np.float32), "b": np.float32([3.0])}
    path = save_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], beta=2.0)],
        {"x": ["n", 16]},
        {"y": ["n", 8]},
        weights,
    )
    prepared = prepare(path, tmp_path, [])

    np.testing.assert_allclose(outputs(prepared.path, {"x": X})[0], X @ weights["w"] + 6.0, rtol=1e-4)
    assert [list(tensor.dims) for tensor in onnx.load(prepared.path).graph.initializer][-1] == [8]


def test_every_node_has_a_name_of_its_own(save_model, tmp_path: Path) -> None:
    weight = {"w": np.eye(16, dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "twice"),
        helper.make_node("MatMul", ["a", "w"], ["b"], "twice"),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    prepared = prepare(save_model(nodes, {"x": ["n", 16]}, {"y": ["n", 16]}, weight), tmp_path, [])

    names = [node.name for node in onnx.load(prepared.path).graph.node]
    assert all(names)
    assert len(set(names)) == len(names) == 3


def test_an_old_opset_is_upgraded_and_computes_the_same(save_model, tmp_path: Path) -> None:
    weight = {"w": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=1),  # means something else from opset 13 on
    ]
    path = save_model(nodes, {"x": ["n", 16]}, {"y": ["n", 8]}, weight, opset=11)

    prepared = prepare(path, tmp_path, [{"x": X}])

    assert prepared.upgraded_from == 11
    assert prepared.inspection.opset == 13
    np.testing.assert_allclose(outputs(prepared.path, {"x": X})[0], outputs(path, {"x": X})[0], rtol=1e-5)


def test_inputs_and_outputs_keep_their_names_and_free_dimensions(perceptron: Path, tmp_path: Path) -> None:
    before, after = onnx.load(perceptron), onnx.load(prepare(perceptron, tmp_path, []).path)

    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)


def test_weights_in_a_file_beside_the_model_are_read(dense: Path, tmp_path: Path) -> None:
    model = onnx.load(dense)
    beside = tmp_path / "beside" / "model.onnx"
    beside.parent.mkdir()
    onnx.save_model(model, beside, save_as_external_data=True, location="weights.bin", size_threshold=0)

    prepared = prepare(beside, tmp_path, [])

    np.testing.assert_array_equal(outputs(prepared.path, {"x": X})[0], outputs(dense, {"x": X})[0])


def test_a_model_beyond_the_limit_of_the_format_keeps_its_weights_beside_it(
    perceptron: Path, digits, tmp_path: Path
) -> None:
    probe, folder = digits.feeds()[:1], tmp_path / "work"
    folder.mkdir()

    prepared = prepare(perceptron, folder, probe, cap=10_000)

    assert {path.name for path in folder.iterdir()} == {"prepared.onnx", "prepared.onnx.data"}
    assert prepared.path.stat().st_size < 10_000
    np.testing.assert_allclose(
        outputs(prepared.path, probe[0])[1], outputs(perceptron, probe[0])[1], rtol=1e-4, atol=1e-6
    )


def test_too_small_a_disk_is_said_before_anything_is_written(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage._replace(free=1000))
    folder = tmp_path / "work"
    folder.mkdir()

    with pytest.raises(UnavailableError, match="0 MB are free"):
        prepare(dense, folder, [])
    assert list(folder.iterdir()) == []


def half_of(path: Path, out: Path) -> Path:
    """The model with float16 inputs, weights and outputs."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, out)
    return out


def test_a_float16_model_is_brought_to_float32_and_keeps_its_signature(dense: Path, tmp_path: Path) -> None:
    half = half_of(dense, tmp_path / "half.onnx")
    feeds = {"x": X.astype(np.float16)}
    folder = tmp_path / "work"
    folder.mkdir()

    prepared = prepare(half, folder, [feeds])

    (old,), (new,) = outputs(half, feeds), outputs(prepared.path, feeds)
    assert new.dtype == old.dtype == np.float16
    np.testing.assert_allclose(new, old, rtol=0.01, atol=0.01)
    stored = [tensor.data_type for tensor in onnx.load(prepared.path).graph.initializer]
    assert stored == [onnx.TensorProto.FLOAT]
    assert any("float16" in note for note in prepared.notes)


def test_the_branches_of_a_float16_model_are_brought_to_float32_too(save_model, tmp_path: Path) -> None:
    half, weight = onnx.TensorProto.FLOAT16, np.eye(16, dtype=np.float16)

    def branch(name: str, scale: float) -> onnx.GraphProto:
        factor = numpy_helper.from_array(np.float16(scale), f"{name}_factor")
        nodes = [
            helper.make_node("Constant", [], [f"{name}_c"], value=factor),
            helper.make_node("Mul", ["h", f"{name}_c"], [name]),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, half, ["n", 16])])

    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=half),
        helper.make_node("MatMul", ["c", "w"], ["h"], "dense"),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["b"], ["z"], then_branch=branch("p", 2.0), else_branch=branch("q", 3.0)),
        helper.make_node("Cast", ["z"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    path = save_model(nodes, {"x": ["n", 16]}, {"y": ["n", 16]}, {"w": weight})

    prepared = prepare(path, tmp_path, [{"x": X}])

    np.testing.assert_allclose(outputs(prepared.path, {"x": X})[0], 2 * X, rtol=0.01, atol=0.01)


def test_a_models_own_functions_are_written_out(save_model, tmp_path: Path) -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}
    path = save_model(
        [helper.make_node("Dense", ["x", "w"], ["y"], domain="mine")],
        {"x": ["n", 16]},
        {"y": ["n", 8]},
        weights,
    )
    model = onnx.load(path)
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    model.functions.append(
        helper.make_function("mine", "Dense", ["a", "b"], ["c"], body, [helper.make_opsetid("", 17)])
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    onnx.save(model, path)

    prepared = prepare(path, tmp_path, [])

    assert [layer.operator for layer in prepared.inspection.layers] == ["MatMul"]
    np.testing.assert_allclose(outputs(prepared.path, {"x": X})[0], outputs(path, {"x": X})[0], rtol=1e-5)


def test_the_source_folder_may_be_read_only(dense: Path, tmp_path: Path) -> None:
    dense.parent.chmod(0o500)
    try:
        before = sorted(path.name for path in dense.parent.iterdir())
        prepare(dense, tmp_path, [])
        assert sorted(path.name for path in dense.parent.iterdir()) == before
    finally:
        dense.parent.chmod(0o700)


def test_what_is_no_model_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "noise.onnx"
    path.write_bytes(b"\xff\xfe not a protobuf" * 10)

    with pytest.raises(UndecidedError, match="cannot read the model"):
        prepare(path, tmp_path, [])
