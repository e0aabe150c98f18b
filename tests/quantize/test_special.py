"""Models that quantizers are known to break on, each from file to smaller file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from smaller import quantize

from mlx_platform.core.errors import UndecidedError
from mlx_platform.quantize.agreement import relative_error
from mlx_platform.quantize.inspect import inspect_file
from mlx_platform.quantize.methods import Made
from mlx_platform.quantize.runtime import start
from mlx_platform.quantize.storage import files_of, size_with_weights
from mlx_platform.quantize.target import ARM, AVX2, VNNI, Target, this_machine


def made_by(method: str, path: Path, folder: Path, feeds, target: Target = AVX2) -> Made:
    return quantize(path, folder, iter(feeds), feeds[:2], method=method, target=target)


def run(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return start(path).run(None, feeds)[0]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("method", ["static", "dynamic"])
@pytest.mark.parametrize("target", [AVX2, VNNI, ARM])
def test_sums_that_overflow_on_this_processor_are_measured_and_said(
    saturating: Path, tmp_path: Path, method: str, target: Target
) -> None:
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.uniform(0.8, 1.0, (4, 256)).astype(np.float32)} for _ in range(4)]

    made = made_by(method, saturating, tmp_path / "q", feeds, target)

    expected, found = run(saturating, feeds[0])[:, :4], run(made.path, feeds[0])[:, :4]
    if this_machine() is AVX2 and target is not AVX2:
        assert relative_error(expected, found) > 0.3
        assert made.verified.overflow > 0.3
        assert any("overflow on this processor" in note for note in made.notes)
    else:
        assert relative_error(expected, found) < 0.02
        assert made.verified.overflow < 0.001
        assert not any("overflow on this processor" in note for note in made.notes)


@pytest.mark.parametrize("opset", [9, 10, 11, 12])
def test_old_opsets_are_upgraded_with_what_resizes(save_model, tmp_path: Path, opset: int) -> None:
    scales = np.array([1, 1, 2, 2], np.float32)
    operator, extra = ("Upsample", ["scales"]) if opset == 9 else ("Resize", ["scales"])
    if opset > 10:
        extra = ["roi", "scales"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node(operator, ["c", *extra], ["y"], "resize", mode="nearest"),
    ]
    weights = {"w": normal(8, 3, 3, 3), "scales": scales}
    if opset > 10:
        weights["roi"] = np.empty(0, np.float32)
    path = save_model(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 8, 16, 16]}, weights, opset=opset)
    feeds = [{"x": normal(2, 3, 8, 8)} for _ in range(3)]

    made = made_by("static", path, tmp_path / "q", feeds)

    assert made.prepared.upgraded_from == opset
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < 0.05


@pytest.mark.parametrize("method", ["static", "dynamic", "fp16", "int4"])
@pytest.mark.parametrize("opset", [17, 19])
def test_float16_models_keep_their_types_outside(save_model, tmp_path: Path, method: str, opset: int) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "dense")]
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 32]}, {"w": normal(64, 32)}, opset=opset)
    model = onnx.load(path)
    weight = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, path)
    feeds = [{"x": normal(4, 64).astype(np.float16)}]

    if method == "fp16":
        with pytest.raises(UndecidedError, match="float16"):
            made_by(method, path, tmp_path / "q", feeds)
        return
    made = made_by(method, path, tmp_path / "q", feeds)

    assert run(made.path, feeds[0]).dtype == np.float16
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < (0.2 if method == "int4" else 0.03)
    assert any("float16" in note for note in made.notes)


def test_layers_after_an_operator_outside_the_standard_run_in_integers(save_model, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["h"], "gelu", domain="com.microsoft"),
        helper.make_node("MatMul", ["h", "w"], ["p"], "dense"),
        helper.make_node("Gelu", ["p"], ["y"], "last", domain="com.microsoft"),
    ]
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, {"w": normal(64, 64)})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    feeds = [{"x": normal(4, 64)}]

    made = made_by("static", path, tmp_path / "q", feeds)

    assert sum(made.verified.kernels.values()) == 1
    assert "Operators outside the ONNX standard stay as they are: 2 Gelu." in made.notes
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < 0.05


def test_an_operator_that_nobody_knows_is_a_sentence(save_model, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Secret", ["x"], ["h"], domain="elsewhere"),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, {"w": normal(64, 64)})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    onnx.save(model, path)

    with pytest.raises(UndecidedError, match=r"cannot load the model.*Secret"):
        made_by("static", path, tmp_path / "q", [{"x": normal(4, 64)}])


@pytest.mark.parametrize("method", ["static", "dynamic", "int4"])
def test_shapes_that_depend_on_the_data_are_no_obstacle(save_model, tmp_path: Path, method: str) -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["m", "limit"], ["chosen"]),
        helper.make_node("Compress", ["x", "chosen"], ["some"], axis=0),
        helper.make_node("MatMul", ["some", "w"], ["y"], "dense"),
    ]
    weights = {"w": normal(64, 32), "limit": np.float32([2.0])}
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["k", 32]}, weights)
    feeds = [{"x": normal(8, 64)}, {"x": np.zeros((3, 64), np.float32)}, {"x": normal(5, 64)}]

    made = made_by(method, path, tmp_path / "q", feeds)

    assert made.verified.quantized_layers == 1
    assert run(made.path, feeds[1]).shape == (0, 32)
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < (0.2 if method == "int4" else 0.03)


def test_only_the_main_graph_is_quantized_and_the_rest_is_counted(save_model, tmp_path: Path) -> None:
    def branch(name: str, weight: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 64])
        return helper.make_graph([helper.make_node("MatMul", ["h", weight], [name])], name, [], [value])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "dense"),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], then_branch=branch("p", "v"), else_branch=branch("q", "u")),
    ]
    weights = {"w": normal(64, 64), "v": normal(64, 65)[:, :64].copy(), "u": normal(64, 66)[:, :64].copy()}
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, weights)
    feeds = [{"x": normal(4, 64)}]

    made = made_by("static", path, tmp_path / "q", feeds)

    assert made.verified.quantized_layers == 1
    assert "2 layers inside If, Loop or Scan bodies can stay float only." in made.notes
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < 0.05


def test_a_condition_that_is_always_true_is_no_condition(save_model, tmp_path: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 64])
        return helper.make_graph([helper.make_node("MatMul", ["x", name[0]], [name])], name, [], [value])

    nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=branch("w1"), else_branch=branch("v1"))]
    weights = {"yes": np.array(True), "w": normal(64, 64), "v": normal(64, 64)}
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, weights)
    feeds = [{"x": normal(4, 64)}]

    made = made_by("static", path, tmp_path / "q", feeds)

    assert made.verified.quantized_layers == 1
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < 0.05


@pytest.mark.parametrize("method", ["static", "dynamic", "fp16", "int4"])
def test_weights_that_are_computed_from_constants_are_weights(
    save_model, tmp_path: Path, method: str
) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("Mul", ["t", "two"], ["v"]),
        helper.make_node("MatMul", ["x", "v"], ["y"], "dense"),
    ]
    weights = {"w": normal(32, 64), "two": np.float32([2.0])}
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 32]}, weights)
    feeds = [{"x": normal(4, 64)}]

    made = made_by(method, path, tmp_path / "q", feeds)

    assert made.verified.quantized_layers == 1
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < (0.2 if method == "int4" else 0.03)


def test_a_model_of_float16_weights_can_become_static_later(perceptron: Path, digits, tmp_path: Path) -> None:
    half = made_by("fp16", perceptron, tmp_path / "half", digits.feeds())

    made = made_by("static", half.path, tmp_path / "q", digits.feeds())

    assert made.verified.quantized_layers == 3
    before, after = (start(path).run(None, {"X": digits.test})[0] for path in (perceptron, made.path))
    assert np.mean(before == after) > 0.98


@pytest.mark.parametrize("method", ["static", "dynamic", "fp16", "int4"])
def test_weights_beside_the_model_are_taken(save_model, tmp_path: Path, method: str) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "dense")]
    plain = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 32]}, {"w": normal(64, 32)})
    path = tmp_path / "beside" / "model.onnx"
    path.parent.mkdir()
    onnx.save_model(
        onnx.load(plain), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    feeds = [{"x": normal(4, 64)}]

    made = made_by(method, path, tmp_path / "q", feeds)

    assert made.files == (made.path,)
    assert made.verified.size_before > 64 * 32 * 4
    assert relative_error(run(path, feeds[0]), run(made.path, feeds[0])) < (0.2 if method == "int4" else 0.03)


def test_fusions_are_shown_before_and_after(save_model, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    path = save_model(nodes, {"x": ["n", 4, 8, 8]}, {"y": ["n", 8, 6, 6]}, {"w": normal(8, 4, 3, 3)})

    verified = made_by("static", path, tmp_path / "q", [{"x": normal(2, 4, 8, 8)}]).verified

    assert verified.operators_before == {"Conv": 1, "Relu": 1}
    assert "Relu" not in verified.optimized_before
    assert verified.operators_after["DequantizeLinear"] > verified.optimized_after.get("DequantizeLinear", 0)
    assert verified.optimized_after["QLinearConv"] == 1


def test_weights_beside_the_file_count_wherever_in_the_graph_they_are(save_model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def branch(name: str) -> onnx.GraphProto:
        weight = numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), f"{name}_w")
        node = helper.make_node("MatMul", ["x", f"{name}_w"], [name], f"{name}_layer")
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 16])
        return helper.make_graph([node], name, [], [value], [weight])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], then_branch=branch("p"), else_branch=branch("q")),
    ]
    plain = save_model(nodes, {"x": ["n", 16]}, {"y": ["n", 16]}, {})
    path = tmp_path / "apart.onnx"
    onnx.save_model(
        onnx.load(plain), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )

    assert files_of(path) == (path, tmp_path / "weights.bin")
    assert size_with_weights(path) == path.stat().st_size + 2 * 4 * 256
    assert inspect_file(path).external == 2
