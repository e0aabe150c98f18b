import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import text_column
from mlx_platform.inference.cases import golden_line, make_case
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.package import open_package, seal, with_file
from mlx_platform.inference.probe import probe
from mlx_platform.inference.spec import spec_from_network, write_spec

FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
ROWS = {"x": (FLOAT, ["n", 3])}


@pytest.fixture
def sealed(tmp_path):
    def make(model):
        onnx.save(model, tmp_path / "model.onnx")
        (tmp_path / "model.toml").write_text(
            write_spec(spec_from_network(read_network(tmp_path / "model.onnx")))
        )
        seal(tmp_path)
        return tmp_path

    return make


@pytest.fixture
def copy(sealed, graph):
    """A network that answers its three numbers."""
    return sealed(graph([helper.make_node("Identity", ["x"], ["y"])], ROWS, {"y": (FLOAT, ["n", 3])}))


def golden(root, inputs, outputs):
    case = make_case(inputs, outputs, rtol=0.01, atol=0)
    with_file(open_package(root), "golden.jsonl", golden_line(case))


def test_golden_cases_are_the_models_own_answers_to_seeded_inputs(logistic_package):
    result = probe(logistic_package.root)

    assert result.golden == ()  # it brings its own, made the same way
    cases = logistic_package.golden()
    assert [case.rows()["x"].shape for case in cases] == [(1, 64), (4, 64)]
    assert all(case.generated for case in cases)
    assert set(cases[0].expected()) == {"label", "probabilities"}


def test_cases_can_be_made_from_given_rows(copy):
    result = probe(copy, seed_rows={"x": np.array([[1, 2, 3]])})

    assert result.golden[0].expected()["y"].tolist() == [[1, 2, 3]]
    assert result.warnings == ()


def test_a_model_of_text_has_no_cases_and_says_so(sealed, graph):
    model = graph(
        [helper.make_node("Identity", ["t"], ["y"])], {"t": (STRING, ["n"])}, {"y": (STRING, ["n"])}
    )
    root = sealed(model)

    result = probe(root)
    assert result.golden == ()
    assert "no golden cases" in result.warnings[0]

    given = probe(root, seed_rows={"t": text_column(["good"])})
    assert given.golden[0].expected()["y"].tolist() == ["good"]


def test_a_model_that_takes_no_made_up_input_says_so(sealed, graph):
    model = graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (FLOAT, ["n", "k"])},
        {"y": (FLOAT, ["m", 11])},
        {"shape": np.array([-1, 11])},
    )

    assert "does not take made-up inputs" in probe(sealed(model)).warnings[0]


@pytest.mark.parametrize("attributes", [{}, {"seed": 1.0}])
def test_a_model_that_draws_random_numbers_is_refused(sealed, graph, attributes):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], **attributes),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]

    with pytest.raises(UsageError, match="not deterministic") as caught:
        probe(sealed(graph(nodes, ROWS, {"y": (FLOAT, ["n", 3])})))
    assert "dropout" in caught.value.hint


def test_golden_cases_of_a_person_must_come_out(copy):
    golden(copy, {"x": np.array([[1.0, 2, 3]])}, {"y": np.array([[1.0, 2, 3.01]])})
    assert probe(copy).golden == ()

    golden(copy, {"x": np.array([[1.0, 2, 3]])}, {"label": text_column(["1"])})
    with pytest.raises(UsageError, match="Golden case 1 does not come out: 'label' is '2', not '1'"):
        probe(copy)


def test_a_network_that_the_checker_refuses_is_refused(sealed, graph):
    model = graph([helper.make_node("Identity", ["nothing"], ["y"])], ROWS, {"y": (FLOAT, ["n", 3])})

    with pytest.raises(UsageError, match="not valid ONNX"):
        probe(sealed(model))


def test_a_network_that_asks_for_terabytes_is_refused(sealed, graph):
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["huge"]),
        helper.make_node("ReduceSum", ["huge"], ["sum"]),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    root = sealed(graph(nodes, ROWS, {"y": (FLOAT, ["n", 3])}, {"shape": np.array([200_000, 200_000])}))

    with pytest.raises(UsageError, match=r"cannot be loaded|failed on cpu|Memory ran out on cpu"):
        probe(root)


def test_a_network_that_never_ends_is_refused(sealed, graph):
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, ["n", 3]),
        ],
        [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("w", FLOAT, ["n", 3])],
    )
    nodes = [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body)]

    with pytest.raises(UsageError, match="within 4 s"):
        probe(sealed(graph(nodes, ROWS, {"y": (FLOAT, ["n", 3])}, {"turns": np.int64(2**62)})), timeout=4)


def test_the_child_holds_itself_to_the_limit(copy):
    with pytest.raises(UsageError):
        probe(copy, memory=64 * 1024**2)


def test_the_child_answers_one_document_whatever_libraries_print(copy):
    command = [sys.executable, "-m", "mlx_platform.inference.probe", str(copy), str(8 * 1024**3)]
    done = subprocess.run(command, input=b"{}", capture_output=True, check=True, cwd=os.sep)

    assert json.loads(done.stdout)["warnings"] == []
