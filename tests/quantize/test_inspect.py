from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from mlx_platform.core.errors import UndecidedError
from mlx_platform.quantize.inspect import inspect, refuse_unsuitable

SQUARE = np.eye(4, dtype=np.float32)


def look(path: Path):
    return inspect(onnx.load(path))


def two_layers(save_model, nodes, weights, **options) -> Path:
    return save_model(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, weights, **options)


def test_every_constant_weight_is_a_layer(convolutional: Path) -> None:
    found = look(convolutional)

    assert {(layer.node, layer.operator, layer.axis) for layer in found.layers} == {
        ("conv1", "Conv", 0),
        ("conv2", "Conv", 0),
        ("head", "Gemm", 1),
    }
    assert found.opset == 17
    assert found.unnamed == 0
    assert found.layers[0].parameters == 16 * 9


def test_unnamed_nodes_are_counted(dense: Path) -> None:
    assert look(dense).unnamed == 1


def test_a_product_of_two_activations_is_no_layer(save_model) -> None:
    path = two_layers(save_model, [helper.make_node("MatMul", ["x", "x"], ["y"])], {})

    assert look(path).layers == ()


def between_casts(save_model, dtype: type, kind: int) -> Path:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=kind),
        helper.make_node("MatMul", ["h", "w"], ["p"], "cast"),
        helper.make_node("Cast", ["p"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    return two_layers(save_model, nodes, {"w": SQUARE.astype(dtype)})


def test_double_precision_stays_as_it_is_and_says_so(save_model) -> None:
    found = look(between_casts(save_model, np.float64, onnx.TensorProto.DOUBLE))

    assert found.layers == ()
    assert "double" in found.left_out["cast"]
    with pytest.raises(UndecidedError, match="double"):
        refuse_unsuitable(found, "double.onnx")


def test_half_precision_counts_as_a_layer_but_is_not_halved_again(save_model) -> None:
    found = look(between_casts(save_model, np.float16, onnx.TensorProto.FLOAT16))

    assert [layer.node for layer in found.layers] == ["cast"]
    refuse_unsuitable(found, "half.onnx")
    with pytest.raises(UndecidedError, match="no layer that float16 helps"):
        refuse_unsuitable(found, "half.onnx", ["fp16"])


def test_convolutions_alone_are_refused_by_what_takes_none(save_model) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    weight = np.ones((4, 4, 1), np.float32)
    found = look(save_model([node], {"x": ["n", 4, 4]}, {"y": ["n", 4, 4]}, {"w": weight}))

    refuse_unsuitable(found, "conv.onnx", ["dynamic", "static"])
    with pytest.raises(UndecidedError, match=r"no layer that INT8 or INT4 helps .*Convolutions") as caught:
        refuse_unsuitable(found, "conv.onnx", ["dynamic", "int4"])
    assert "--method static" in caught.value.hint


def test_a_recurrent_layer_stays_float_with_its_reason(save_model) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(1, 32, 8)).astype(np.float32),
        "r": rng.normal(size=(1, 32, 8)).astype(np.float32),
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], "memory", hidden_size=8)
    found = look(save_model([node], {"x": ["t", "n", 8]}, {"y": ["t", 1, "n", 8]}, weights))

    assert "no static integer kernel" in found.left_out["memory"]
    with pytest.raises(UndecidedError, match="Recurrent") as caught:
        refuse_unsuitable(found, "lstm.onnx")
    assert "--method fp16" in caught.value.hint
    refuse_unsuitable(found, "lstm.onnx", ["fp16"])


def test_operators_outside_the_standard_are_counted(save_model) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["h"], "gelu", domain="com.microsoft"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "dense"),
    ]

    found = look(two_layers(save_model, nodes, {"w": SQUARE}))

    assert found.foreign == {"Gelu": 1}
    assert found.numbers == 16


def test_the_machine_learning_part_of_the_standard_is_not_outside_of_it(forest: Path) -> None:
    assert look(forest).foreign == {}


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (helper.make_node("Gemm", ["h", "w"], ["y"], "second", transB=1), "shared"),
        (helper.make_node("Add", ["h", "w"], ["y"], "second"), "shared"),
    ],
)
def test_a_weight_that_others_read_differently_stays_float(save_model, second, reason: str) -> None:
    first = helper.make_node("MatMul", ["x", "w"], ["h"], "first")

    found = look(two_layers(save_model, [first, second], {"w": SQUARE}))

    assert found.layers == ()
    assert reason in found.left_out["first"]


def test_a_weight_shared_by_two_layers_of_a_kind_is_quantized(save_model) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
    ]

    assert len(look(two_layers(save_model, nodes, {"w": SQUARE})).layers) == 2


@pytest.mark.parametrize(
    ("bias", "attributes", "reason"),
    [(SQUARE, {}, "row to row"), (SQUARE[0], {"alpha": 0.5}, "scales its product")],
)
def test_a_gemm_that_the_integer_form_cannot_express_stays_float(
    save_model, bias: np.ndarray, attributes: dict, reason: str
) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", **attributes)

    found = look(two_layers(save_model, [node], {"w": SQUARE, "b": bias}))

    assert reason in found.left_out["gemm"]


def test_layers_in_a_branch_are_seen_but_out_of_reach(save_model) -> None:
    def branch(name: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4])
        return helper.make_graph([helper.make_node("MatMul", ["x", "w"], [name])], name, [], [value])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b")),
    ]

    found = look(two_layers(save_model, nodes, {"w": SQUARE}))

    assert (found.control_flow, found.in_subgraphs, found.layers) == (1, 2, ())
    with pytest.raises(UndecidedError, match="If, Loop or Scan"):
        refuse_unsuitable(found, "branches.onnx")


def test_trees_are_refused_with_their_reason(forest: Path) -> None:
    with pytest.raises(
        UndecidedError, match=r"forest.onnx has no layer .*TreeEnsembleClassifier.*thresholds"
    ) as caught:
        refuse_unsuitable(look(forest), forest.name)

    assert caught.value.exit_code == 7
    assert "shallower" in caught.value.hint


def test_linear_models_are_refused_with_their_reason(linear: Path) -> None:
    with pytest.raises(UndecidedError, match="linear model"):
        refuse_unsuitable(look(linear), linear.name)


def test_a_quantized_model_is_refused(save_model) -> None:
    scale = {"s": np.float32(0.1).reshape(()), "z": np.uint8(0).reshape(()), "w": SQUARE}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]

    with pytest.raises(UndecidedError, match="already quantized"):
        refuse_unsuitable(look(two_layers(save_model, nodes, scale)), "int8.onnx")
