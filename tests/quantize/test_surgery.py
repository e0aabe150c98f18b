from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from smaller import quantize

from mlx_platform.quantize.agreement import relative_error
from mlx_platform.quantize.build import build
from mlx_platform.quantize.methods import Made
from mlx_platform.quantize.runtime import start
from mlx_platform.quantize.surgery import Surgery


def quantized(path: Path, folder: Path, feeds) -> Made:
    return quantize(path, folder, iter(feeds), feeds[:2])


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return start(path).run(None, feeds)


def images(rows: int = 8) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.uniform(0, 1, (rows, 1, 16, 16)).astype(np.float32)} for _ in range(4)]


@pytest.fixture
def operated(convolutional: Path, tmp_path: Path) -> tuple[Made, Surgery]:
    made = quantized(convolutional, tmp_path / "q", images())
    return made, Surgery(made.prepared.path, made.path, made.built.plan)


def test_any_set_of_layers_gives_what_quantizing_the_others_gives(operated, tmp_path: Path) -> None:
    made, surgery = operated
    feeds = images()[0]
    for count in range(len(surgery.layers)):
        for reverted in combinations(surgery.layers, count):
            cut = surgery.write(reverted, tmp_path / "cut.onnx")
            onnx.checker.check_model(str(cut), full_check=True)
            again = tmp_path / "again.onnx"
            kept = surgery.kept(reverted)
            build(made.prepared.path, again, kept, made.ranges, made.target, model_name="it")
            # A batch dimension of another name picks another kernel for what is float: the last digit.
            np.testing.assert_allclose(run(cut, feeds)[0], run(again, feeds)[0], atol=1e-3)


def test_without_any_integer_layer_it_is_the_float_model(operated, tmp_path: Path) -> None:
    made, surgery = operated

    cut = surgery.write(surgery.layers, tmp_path / "cut.onnx")

    feeds = images()[0]
    assert relative_error(run(made.prepared.path, feeds)[0], run(cut, feeds)[0]) < 1e-6
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in onnx.load(cut).graph.node}


def test_the_other_layers_stay_integer_and_fused(operated, tmp_path: Path) -> None:
    _, surgery = operated

    cut = surgery.write({"conv2"}, tmp_path / "cut.onnx")
    start(cut, save_to=tmp_path / "optimized.onnx")

    kernels = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert (kernels["QLinearConv"], kernels["QGemm"]) == (1, 1)


def test_a_pooling_is_float_again_with_the_convolution_before_it(operated) -> None:
    _, surgery = operated

    assert surgery.kept(()).followers == ("relu1", "pool")
    assert surgery.kept({"conv1"}).followers == ()
    assert surgery.kept({"conv2"}).followers == ("relu1", "pool")


def test_a_layer_costs_three_bytes_a_weight(operated, tmp_path: Path) -> None:
    _, surgery = operated
    sizes = [surgery.write(reverted, tmp_path / "cut.onnx").stat().st_size for reverted in ((), ("conv2",))]

    assert surgery.cost("conv2") == 3 * 16 * 16 * 9
    assert sizes[1] - sizes[0] == pytest.approx(surgery.cost("conv2"), rel=0.15)


def test_a_sum_beside_a_quantized_product_reads_the_exact_numbers(save_model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Sigmoid", ["m"], ["s"], "sigmoid"),
        helper.make_node("Add", ["s", "x"], ["y"], "residual"),
    ]
    weight = rng.normal(size=(16, 16)).astype(np.float32)
    path = save_model(nodes, {"x": ["n", 16]}, {"y": ["n", 16]}, {"w": weight})
    feeds = [{"x": rng.normal(size=(8, 16)).astype(np.float32)}]
    made = quantized(path, tmp_path / "q", feeds)

    cut = Surgery(made.prepared.path, made.path, made.built.plan).write((), tmp_path / "cut.onnx")

    exact = run(path, feeds[0])[0]
    assert relative_error(exact, run(cut, feeds[0])[0]) < relative_error(exact, run(made.path, feeds[0])[0])
    residual = next(node for node in onnx.load(cut).graph.node if node.name == "residual")
    assert residual.input[1] == "x"


def test_a_tensor_that_the_graph_gives_out_keeps_its_name(save_model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in (("w1", (4, 1, 3, 3)), ("w2", (4, 4, 3, 3)))
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["inner"], "first", pads=[1] * 4),
        helper.make_node("Conv", ["inner", "w2"], ["y"], "second", pads=[1] * 4),
    ]
    shapes = {"y": ["n", 4, 16, 16], "inner": ["n", 4, 16, 16]}
    path = save_model(nodes, {"x": ["n", 1, 16, 16]}, shapes, weights)
    made = quantized(path, tmp_path / "q", images())
    surgery = Surgery(made.prepared.path, made.path, made.built.plan)

    for reverted in ((), ("first",), ("second",), ("first", "second")):
        cut = surgery.write(reverted, tmp_path / "cut.onnx")
        onnx.checker.check_model(str(cut), full_check=True)
        for before, after in zip(run(path, images()[0]), run(cut, images()[0]), strict=True):
            assert relative_error(before, after) < 0.05


def test_layers_that_share_a_bias_are_told_apart(save_model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b"], ["m"], "first"),
        helper.make_node("Sigmoid", ["m"], ["s"], "sigmoid"),
        helper.make_node("Gemm", ["s", "w2", "b"], ["y"], "second"),
    ]
    weights = {name: rng.normal(size=(8, 8)).astype(np.float32) for name in ("w1", "w2")}
    path = save_model(
        nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, weights | {"b": rng.normal(size=8).astype(np.float32)}
    )
    feeds = [{"x": rng.normal(size=(8, 8)).astype(np.float32)}]
    made = quantized(path, tmp_path / "q", feeds)
    surgery = Surgery(made.prepared.path, made.path, made.built.plan)

    for reverted in [(name,) for name in surgery.layers]:
        cut = surgery.write(reverted, tmp_path / "cut.onnx")
        onnx.checker.check_model(str(cut), full_check=True)
        assert relative_error(run(path, feeds[0])[0], run(cut, feeds[0])[0]) < 0.05
