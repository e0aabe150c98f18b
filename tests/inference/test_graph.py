import itertools

import numpy as np
import onnx
import pytest
from onnx import helper

from mlx_platform.core.errors import UsageError
from mlx_platform.inference.graph import read_network

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
CLASSES = {"y": (FLOAT, ["n", 3])}


def saved(tmp_path, model):
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize(
    ("outputs", "task"),
    [
        ({"y": (FLOAT, ["n", 3])}, "classification"),
        ({"y": (FLOAT, ["n", 1])}, "regression"),
        ({"y": (FLOAT, ["n"])}, "regression"),
        ({"y": (FLOAT, ["n", "k"])}, "tensors"),
        ({"y": (FLOAT, ["n", 3, 3])}, "tensors"),
        ({"embedding": (FLOAT, ["n", 3])}, "tensors"),
        ({"y": (INT64, ["n"])}, "tensors"),
        ({"y": (FLOAT, ["n", 3]), "z": (FLOAT, ["n", 3])}, "tensors"),
        ({"y": (FLOAT, ["n", 3]), "label": (INT64, ["n"])}, "classification"),
        ({"y": (FLOAT, ["n", 3]), "state": (INT64, ["n"])}, "tensors"),
    ],
)
def test_the_outputs_tell_the_task(tmp_path, graph, outputs, task):
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in outputs]

    assert read_network(saved(tmp_path, graph(nodes, {"x": (FLOAT, ["n", 3])}, outputs))).task == task


@pytest.mark.parametrize(("operator", "scores"), [("Softmax", False), ("Sigmoid", False), ("Relu", True)])
def test_probabilities_are_told_from_scores_through_operators_that_pass_values_on(
    tmp_path, graph, operator, scores
):
    nodes = [
        helper.make_node(operator, ["x"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Cast", ["b"], ["y"], to=FLOAT),
    ]

    assert read_network(saved(tmp_path, graph(nodes, {"x": (FLOAT, ["n", 3])}, CLASSES))).scores is scores


def test_text_labels_are_read_from_the_graph(tmp_path, graph):
    node = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "y"],
        domain="ai.onnx.ml",
        coefficients=[1.0] * 9,
        intercepts=[0.0] * 3,
        classlabels_strings=["cat", "cow", "dog"],
        post_transform="SOFTMAX",
    )
    outputs = {"label": (onnx.TensorProto.STRING, ["n"]), **CLASSES}

    network = read_network(saved(tmp_path, graph([node], {"x": (FLOAT, ["n", 3])}, outputs)))

    assert network.labels == ("cat", "cow", "dog")
    assert not network.scores


def test_weights_listed_as_inputs_are_no_inputs(tmp_path, graph):
    model = graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {"x": (FLOAT, ["n", 3]), "w": (FLOAT, [3])},
        CLASSES,
        {"w": np.ones(3, dtype=np.float32)},
    )

    assert [tensor.name for tensor in read_network(saved(tmp_path, model)).inputs] == ["x"]


def test_operators_are_counted_up_to_the_limit_and_refused_beyond(tmp_path, graph):
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("Relu", [one], [other]) for one, other in itertools.pairwise(names)]
    path = saved(tmp_path, graph(nodes, {"x": (FLOAT, ["n", 3])}, CLASSES))

    assert read_network(path, max_nodes=3).nodes == 3
    with pytest.raises(UsageError, match="more than 2 operators"):
        read_network(path, max_nodes=2)


def test_operators_of_a_subgraph_count(tmp_path, graph):
    inner = graph([helper.make_node("Relu", ["x"], ["i"])], {}, {"i": (FLOAT, ["n", 3])}).graph
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    inputs = {"c": (onnx.TensorProto.BOOL, [1]), "x": (FLOAT, ["n", 3])}

    assert read_network(saved(tmp_path, graph([node], inputs, CLASSES))).nodes == 3


def test_maps_per_row_are_refused_with_the_option_that_avoids_them(tmp_path, graph):
    model = graph([helper.make_node("Identity", ["x"], ["y"])], {"x": (FLOAT, ["n", 3])}, CLASSES)
    element = helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, []))
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(element))

    with pytest.raises(UsageError, match="no tensor but a sequence_type") as caught:
        read_network(saved(tmp_path, model))
    assert "zipmap=False" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08"])
def test_other_bytes_are_no_model(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)

    with pytest.raises(UsageError, match="no ONNX model"):
        read_network(tmp_path / "m.onnx")
