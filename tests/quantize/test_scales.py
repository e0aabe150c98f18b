"""What a quantized network says about the integers behind its outputs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mlx_platform.quantize.scales import has_integers, output_scales


def write(path, scales, *, constant=True):
    """A network whose output is dequantized, and another that is not."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["q"], axis=1),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["y"], axis=1),
        helper.make_node("Neg", ["x"], ["z"]),
    ]
    scale = np.array(scales, np.float32)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])]
        + (
            [] if constant else [helper.make_tensor_value_info("scale", TensorProto.FLOAT, list(scale.shape))]
        ),
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("y", "z")],
        [numpy_helper.from_array(scale, "scale")] if constant else [],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("scale", [0.25, [0.25]])
def test_an_output_that_is_dequantized_has_the_scale_of_its_integers(tmp_path, scale):
    assert output_scales(write(tmp_path / "model.onnx", scale)) == {"y": 0.25}


def test_a_scale_for_each_channel_or_of_the_input_is_none(tmp_path):
    assert output_scales(write(tmp_path / "channels.onnx", [0.25, 0.5])) == {}
    assert output_scales(write(tmp_path / "input.onnx", 0.25, constant=False)) == {}


def test_a_network_of_floats_has_no_integers(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "floats.onnx")

    assert not has_integers(tmp_path / "floats.onnx")
    assert has_integers(write(tmp_path / "model.onnx", 0.25))
