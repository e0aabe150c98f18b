import os
import shutil
import stat
import subprocess
import sys
import tomllib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import sha256_of

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.inference.build import BuildOptions, build_package, environment_lock
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package

FLOAT = TensorProto.FLOAT
ROWS = {"x": (FLOAT, ["n", 3])}


def test_an_onnx_file_is_stored_unchanged_beside_all_that_makes_a_package(logistic_onnx, logistic_package):
    root = logistic_package.root

    assert sha256_of(root / "model.onnx") == sha256_of(logistic_onnx)
    assert sorted(entry.path for entry in logistic_package.manifest.files) == [
        "MLmodel",
        "environment.lock",
        "golden.jsonl",
        "model.onnx",
        "model.toml",
    ]
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert open_package(root) == logistic_package
    assert Model.load(logistic_package).self_check() == []


def test_the_same_file_gives_the_same_package(logistic_onnx, logistic_package, tmp_path):
    again = build_package(logistic_onnx, tmp_path / "again").package

    assert again.content_digest == logistic_package.content_digest
    assert again.digest == logistic_package.digest


def test_an_estimator_becomes_a_package_that_answers_as_it_does(mlp_skops, mlp, digits, tmp_path):
    result = build_package(mlp_skops, tmp_path / "out")

    answers = Model.load(result.package).predict(digits[0][:50])
    assert answers.columns["label"].tolist() == [str(digit) for digit in mlp.predict(digits[0][:50])]
    assert result.warnings == ()
    assert result.probe.load_seconds > 0


def test_an_estimator_fitted_on_named_columns_asks_for_them(tmp_path):
    import pandas as pd
    import skops.io
    from sklearn.linear_model import LinearRegression

    frame = pd.DataFrame({"age": [1.0, 2, 3], "size": [4.0, 6, 5]})
    skops.io.dump(LinearRegression().fit(frame, [1, 2, 3]), tmp_path / "m.skops")

    model = Model.load(build_package(tmp_path / "m.skops", tmp_path / "out").package)

    assert model.columns == ("age", "size")
    assert model.predict(frame[["size", "age"]]).columns["value"] == pytest.approx([1, 2, 3], abs=1e-5)
    assert len(model.package.golden()) == 2


@pytest.fixture
def folder(tmp_path, matmul_onnx):
    folder = tmp_path / "source"
    folder.mkdir()
    shutil.copy(matmul_onnx, folder / "model.onnx")
    return folder


SPEC = """# Kept as written.
format = 1
task = "classification"
labels = ["red", "green", "blue"]
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 3]
[[outputs]]
name = "scores"
datatype = "FP32"
shape = [-1, 3]
[[post]]
step = "softmax"
output = "scores"
[[post]]
step = "labels"
"""
RED = '{"inputs": {"x": [[5, 1, 1]]}, "outputs": {"label": "red"}}\n'


def test_a_folder_keeps_its_spec_and_golden_cases(folder, tmp_path):
    (folder / "model.toml").write_text(SPEC)
    (folder / "golden.jsonl").write_text(RED)
    (folder / "notes.txt").write_text("")

    result = build_package(folder, tmp_path / "out")

    assert (tmp_path / "out" / "model.toml").read_text() == SPEC
    assert [case.generated for case in result.package.golden()] == [False]
    assert result.warnings == ("Left out, as it is no part of a package: notes.txt.",)


def test_a_spec_that_leaves_things_out_is_completed_from_the_network(folder, tmp_path):
    (folder / "model.toml").write_text(
        'format = 1\ntask = "classification"\nlabels = ["red", "green", "blue"]\n'
    )

    spec = build_package(folder, tmp_path / "out").package.spec

    assert spec.inputs[0].name == "x"
    assert [step.kind for step in spec.post] == ["softmax", "labels"]
    assert spec.labels == ("red", "green", "blue")


def test_a_spec_that_is_not_the_networks_is_refused(folder, tmp_path):
    (folder / "model.toml").write_text(SPEC.replace("shape = [-1, 3]", "shape = [-1, 4]", 1))

    with pytest.raises(UsageError, match="declares the input x FP32"):
        build_package(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_package_can_be_the_source_of_the_same_package(logistic_package, tmp_path):
    result = build_package(logistic_package.root, tmp_path / "out")

    assert result.package.content_digest == logistic_package.content_digest
    assert result.warnings == ()


def test_given_golden_cases_and_baseline_go_in(logistic_onnx, folder, tmp_path):
    (tmp_path / "g.jsonl").write_text(RED.replace("red", "0"))

    package = build_package(
        folder, tmp_path / "out", BuildOptions(golden=tmp_path / "g.jsonl", baseline=b"{}")
    ).package

    assert package.read_json("baseline.json") == {}
    assert len(package.golden()) == 1
    (tmp_path / "g.jsonl").write_text("")
    with pytest.raises(UsageError, match="no golden case"):
        build_package(folder, tmp_path / "out2", BuildOptions(golden=tmp_path / "g.jsonl"))


def test_golden_cases_that_do_not_come_out_are_refused(folder, tmp_path):
    (tmp_path / "g.jsonl").write_text(RED)

    with pytest.raises(UsageError, match="Golden case 1 does not come out"):
        build_package(folder, tmp_path / "out", BuildOptions(golden=tmp_path / "g.jsonl"))


def carrier(graph, kind, location):
    """A network with one external tensor: an initializer, a constant, or a sparse form of either."""
    values = helper.make_tensor("w", FLOAT, [3], np.ones(3, np.float32).tobytes(), raw=True)
    values.ClearField("raw_data")
    values.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "12")):
        values.external_data.add(key=key, value=value)
    sparse = helper.make_sparse_tensor(
        values, helper.make_tensor("i", TensorProto.INT64, [3], [0, 1, 2]), [3]
    )
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    if kind == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=values))
    if kind == "sparse constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    model = graph(nodes, ROWS, {"y": (FLOAT, ["n", 3])})
    if kind == "initializer":
        model.graph.initializer.append(values)
    if kind == "sparse initializer":
        model.graph.sparse_initializer.append(sparse)
    return model.SerializeToString()


CARRIERS = ("initializer", "constant", "sparse initializer", "sparse constant")


@pytest.mark.parametrize("kind", CARRIERS)
@pytest.mark.parametrize(
    "way", ["../w.bin", "sub/../../w.bin", "absolute", "symlink", "linked folder", "hardlink"]
)
def test_tensors_outside_the_folder_are_out_of_reach(tmp_path, graph, kind, way):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    secret = tmp_path / "w.bin"
    secret.write_bytes(np.ones(3, np.float32).tobytes())
    location = {"absolute": str(secret), "symlink": "w", "hardlink": "w", "linked folder": "up/w.bin"}.get(
        way, way
    )
    if way == "symlink":
        (source / "w").symlink_to(secret)
    if way == "linked folder":
        (source / "up").symlink_to(tmp_path)
    if way == "hardlink":
        os.link(secret, source / "w")
    (source / "model.onnx").write_bytes(carrier(graph, kind, location))

    for given in (source, source / "model.onnx"):
        with pytest.raises(UsageError):
            build_package(given, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["initializer", "constant"])
def test_tensors_beside_the_network_are_sealed_with_it(tmp_path, graph, kind):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    (tmp_path / "net.onnx").write_bytes(carrier(graph, kind, "data/w.bin"))

    package = build_package(tmp_path / "net.onnx", tmp_path / "out").package

    assert package.has("data/w.bin")
    assert Model.load(package).predict(np.zeros((1, 3))).tensors["y"].tolist() == [[1, 2, 3]]


def test_limits_are_options(matmul_onnx, tmp_path):
    size = matmul_onnx.stat().st_size
    assert (
        build_package(matmul_onnx, tmp_path / "a", BuildOptions(max_bytes=size, max_nodes=1)).package.size
        > size
    )
    with pytest.raises(UsageError, match=f"more than {size - 1}"):
        build_package(matmul_onnx, tmp_path / "b", BuildOptions(max_bytes=size - 1))
    with pytest.raises(UsageError, match="more than 0 operators"):
        build_package(matmul_onnx, tmp_path / "b", BuildOptions(max_nodes=0))


def test_no_source_or_no_room_is_a_sentence(matmul_onnx, tmp_path):
    with pytest.raises(NotFoundError):
        build_package(tmp_path / "absent.onnx", tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="cannot be made: File exists"):
        build_package(matmul_onnx, tmp_path / "out")


def test_the_lock_names_exact_versions_of_what_runs():
    lock = tomllib.loads(environment_lock())

    assert lock["python"].startswith("3.")
    assert lock["packages"]["onnx"] == onnx.__version__
    assert {"mlx-platform", "onnxruntime", "numpy", "mlflow"} <= lock["packages"].keys()
    assert "boto3" not in lock["packages"]


LOAD = """
import sys, warnings
import numpy as np
import mlflow.onnx, mlflow.pyfunc
rows = np.full((2, 64), 0.5, np.float32)
network = mlflow.onnx.load_model(sys.argv[1])
answers = mlflow.pyfunc.load_model(sys.argv[1]).predict({"x": rows})
print(network.graph.name, answers["label"].tolist())
"""


def test_mlflow_loads_a_package_in_both_of_its_ways(logistic_package, logistic_model):
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(logistic_package.root)], capture_output=True, text=True, check=False
    )

    expected = logistic_model.predict(np.full((2, 64), 0.5)).tensors["label"].tolist()
    assert done.stdout == f"model {expected}\n", done.stderr
    assert open_package(logistic_package.root).digest == logistic_package.digest
