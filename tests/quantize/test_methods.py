from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.quantize.agreement import relative_error
from mlx_platform.quantize.calibrate import Range
from mlx_platform.quantize.int4 import BLOCK, pack
from mlx_platform.quantize.methods import METHODS, Made, make, plan_of
from mlx_platform.quantize.prepare import prepare
from mlx_platform.quantize.runtime import start
from mlx_platform.quantize.target import AVX2


def made_by(method: str, path: Path, folder: Path, feeds, **options) -> Made:
    folder.mkdir(exist_ok=True)
    prepared = prepare(path, folder, feeds[:2], methods=[method] if method in METHODS else ["static"])
    return make(method, prepared, folder / f"{method}.onnx", feeds[:2], AVX2, **options)


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return start(path).run(None, feeds)


def test_dynamic_int8_needs_no_calibration_and_runs_every_layer_in_integers(
    perceptron: Path, digits, tmp_path: Path
) -> None:
    made = made_by("dynamic", perceptron, tmp_path / "q", digits.feeds())

    before, after = (run(path, {"X": digits.test}) for path in (perceptron, made.path))
    assert np.mean(before[0] == after[0]) > 0.98
    assert made.verified.size_after < 0.4 * made.verified.size_before
    assert made.verified.quantized_layers == 3
    assert sum(made.verified.kernels.values()) == 3
    assert [entry.node for entry in made.layer_errors]
    assert 0 < made.layer_errors[0].error < 0.1


def test_float16_weights_halve_the_file_and_change_next_to_nothing(
    perceptron: Path, digits, tmp_path: Path
) -> None:
    made = made_by("fp16", perceptron, tmp_path / "q", digits.feeds())

    before, after = (run(path, {"X": digits.test}) for path in (perceptron, made.path))
    np.testing.assert_allclose(after[1], before[1], atol=0.01)
    assert made.verified.size_after < 0.6 * made.verified.size_before
    assert made.verified.kernels == {}


def test_a_weight_beyond_float16_stays_float32(save_model, tmp_path: Path) -> None:
    weights = {"w": np.full((16, 16), 70_000, np.float32), "v": np.eye(16, dtype=np.float32)}
    nodes = [helper.make_node("MatMul", [a, b], [c], c) for a, b, c in (("x", "w", "h"), ("h", "v", "y"))]
    path = save_model(nodes, {"x": ["n", 16]}, {"y": ["n", 16]}, weights)

    made = made_by("fp16", path, tmp_path / "q", [{"x": np.ones((2, 16), np.float32)}])

    stored = {tensor.name: tensor.data_type for tensor in onnx.load(made.path).graph.initializer}
    assert stored == {"w": onnx.TensorProto.FLOAT, "v:half": onnx.TensorProto.FLOAT16}
    assert made.left_out == {"h": "Its weight is beyond the range of float16."}


def memory(save_model) -> Path:
    """An LSTM in both branches of a condition, with weights that the branches share."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(1, 64, 16)).astype(np.float32) for name in ("w", "r")}

    def branch(name: str, factor: float) -> onnx.GraphProto:
        nodes = [
            helper.make_node(
                "Constant", [], [f"{name}_f"], value=numpy_helper.from_array(np.float32(factor))
            ),
            helper.make_node("Mul", ["x", f"{name}_f"], [f"{name}_x"]),
            helper.make_node("LSTM", [f"{name}_x", "w", "r"], [name], f"{name}_memory", hidden_size=16),
        ]
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["t", 1, "n", 16])
        return helper.make_graph(nodes, name, [], [value])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["b"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], then_branch=branch("p", 1), else_branch=branch("q", 2)),
    ]
    return save_model(nodes, {"x": ["t", "n", 16]}, {"y": ["t", 1, "n", 16]}, weights)


def test_the_weights_of_recurrent_layers_in_branches_are_halved(save_model, tmp_path: Path) -> None:
    path = memory(save_model)
    feeds = [{"x": np.random.default_rng(seed).normal(size=(5, 2, 16)).astype(np.float32)} for seed in (1, 2)]

    made = made_by("fp16", path, tmp_path / "q", feeds)

    assert made.verified.size_after < 0.7 * made.verified.size_before
    for batch in feeds:
        assert relative_error(run(path, batch)[0], run(made.path, batch)[0]) < 0.001
    with pytest.raises(UndecidedError, match="no layer that INT8 helps"):
        plan_of("static", made.prepared)


def test_the_error_of_a_layer_that_leaves_out_its_first_output_is_that_of_the_next(
    save_model, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(1, 64, 16)).astype(np.float32) for name in ("w", "r")}
    weights["v"] = rng.normal(size=(16, 16)).astype(np.float32)
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], "memory", hidden_size=16),
        helper.make_node("LSTM", ["x", "r", "w"], ["", "", "c"], "cell", hidden_size=16),
        helper.make_node("Add", ["h", "c"], ["s"], "sum"),
        helper.make_node("MatMul", ["s", "v"], ["y"], "last"),
    ]
    path = save_model(nodes, {"x": ["t", "n", 16]}, {"y": [1, "n", 16]}, weights)

    made = made_by("fp16", path, tmp_path / "q", [{"x": rng.normal(size=(5, 2, 16)).astype(np.float32)}])

    errors = {entry.node: entry.error for entry in made.layer_errors}
    assert errors.keys() == {"memory", "cell", "last"}
    assert all(0 < error < 0.01 for error in errors.values())


def test_a_weight_that_callers_may_replace_stays_as_it_is(save_model, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(16, 16)).astype(np.float32) for name in ("w", "v")}
    weights["u"] = weights["w"]
    nodes = [
        helper.make_node("MatMul", [a, b], [c], c)
        for a, b, c in (("x", "w", "g"), ("g", "u", "h"), ("h", "v", "y"))
    ]
    path = save_model(nodes, {"x": ["n", 16], "w": [16, 16]}, {"y": ["n", 16]}, weights)
    feeds = [{"x": rng.normal(size=(2, 16)).astype(np.float32)}]

    made = made_by("fp16", path, tmp_path / "q", feeds)

    stored = {tensor.name: tensor.data_type for tensor in onnx.load(made.path).graph.initializer}
    half = onnx.TensorProto.FLOAT16
    assert stored == {"w": onnx.TensorProto.FLOAT, "u:half": half, "v:half": half}
    replaced = {**feeds[0], "w": np.zeros((16, 16), np.float32)}
    assert not run(made.path, replaced)[0].any()


def test_int4_weights_are_the_smallest(perceptron: Path, digits, tmp_path: Path) -> None:
    made = made_by("int4", perceptron, tmp_path / "q", digits.feeds())

    before, after = (run(path, {"X": digits.test}) for path in (perceptron, made.path))
    assert np.mean(before[0] == after[0]) > 0.95
    assert made.verified.size_after < 0.3 * made.verified.size_before
    assert made.verified.kernels == {"MatMulNBits": 3}


@pytest.mark.parametrize("method", ["dynamic", "fp16", "int4"])
def test_an_embedding_is_stored_narrow(embedding, tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    path = embedding(64)
    feeds = [{"ids": rng.integers(0, 500, (4, length)).astype(np.float32)} for length in (3, 9)]

    made = made_by(method, path, tmp_path / "q", feeds)

    share, error = {"dynamic": (0.28, 0.01), "fp16": (0.52, 0.001), "int4": (0.18, 0.1)}[method]
    assert made.verified.size_after < share * made.verified.size_before
    for batch in feeds:
        assert relative_error(run(path, batch)[0], run(made.path, batch)[0]) < error


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"static"}))
def test_layers_that_are_to_stay_float_do(perceptron: Path, digits, tmp_path: Path, method: str) -> None:
    whole = made_by(method, perceptron, tmp_path / "a", digits.feeds())
    first = whole.built.plan.layers[0]

    made = made_by(method, perceptron, tmp_path / "b", digits.feeds(), without={first.node})

    stored = {tensor.name: tensor.data_type for tensor in onnx.load(made.path).graph.initializer}
    assert stored[first.weight] == onnx.TensorProto.FLOAT
    assert made.verified.quantized_layers == whole.verified.quantized_layers - 1
    with pytest.raises(UndecidedError, match="stay float"):
        made_by(
            method,
            perceptron,
            tmp_path / "c",
            digits.feeds(),
            without={layer.node for layer in whole.built.plan.layers},
        )


def test_a_layer_that_is_not_there_cannot_stay_float(perceptron: Path, digits, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no layer 'MatMull'"):
        made_by("dynamic", perceptron, tmp_path / "q", digits.feeds(), without={"MatMull"})


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"static"}))
def test_a_bias_is_added_once_whatever_the_layout_of_the_weight(
    save_model, tmp_path: Path, method: str
) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(8, 64)).astype(np.float32),
        "b": rng.normal(size=8).astype(np.float32) * 10,
    }
    path = save_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", transB=1)],
        {"x": ["n", 64]},
        {"y": ["n", 8]},
        weights,
    )
    feeds = [{"x": rng.normal(size=(8, 64)).astype(np.float32)}]

    made = made_by(method, path, tmp_path / "q", feeds)

    assert relative_error(run(path, feeds[0])[0], run(made.path, feeds[0])[0]) < 0.1


@pytest.mark.parametrize("width", [32, 33, 70, 1])
def test_int4_blocks_hold_rows_of_any_width(width: int) -> None:
    rows = np.random.default_rng(width).normal(size=(3, width)).astype(np.float32)

    packed, scales, zeros = pack(rows)

    steps = np.stack([packed & 15, packed >> 4], axis=-1).reshape(3, -1, BLOCK).astype(np.float32)
    nibbles = np.stack([zeros & 15, zeros >> 4], axis=-1).reshape(3, -1)[:, : scales.shape[1]]
    restored = ((steps - nibbles[..., None]) * scales[..., None]).reshape(3, -1)[:, :width]
    assert packed.shape == (3, -(-width // BLOCK), BLOCK // 2)
    assert np.abs(restored - rows).max() <= scales.max()


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_with_infinity_stays_float(save_model, tmp_path: Path, method: str) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(64, 64)).astype(np.float32) for name in ("w", "v")}
    weights["v"][3, 5] = -np.inf
    nodes = [helper.make_node("MatMul", ["x", key], [key + "x"], key) for key in weights]
    nodes.append(helper.make_node("Concat", ["wx", "vx"], ["y"], axis=1))
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 128]}, weights)
    feeds = [{"x": np.abs(rng.normal(size=(4, 64))).astype(np.float32)}]

    made = made_by(method, path, tmp_path / "q", feeds, ranges={"x": Range(0.0, 4.0)})

    assert made.left_out["v"] == "Its weight holds NaN or infinity."
    assert made.verified.quantized_layers == 1
    np.testing.assert_array_equal(run(made.path, feeds[0])[0][:, 69], -np.inf)


@pytest.mark.parametrize("method", METHODS)
def test_tensors_named_like_those_that_are_added_are_no_obstacle(
    save_model, tmp_path: Path, method: str
) -> None:
    rng = np.random.default_rng(0)
    added = ("quantized", "scale", "zero_point", "scales", "zero_points", "half", "int4", "cast")
    weights = {f"w_{part}": rng.normal(size=64).astype(np.float32) for part in added}
    names = ["x", *(f"x_{part}" for part in added)]
    nodes = [
        helper.make_node("Add", [before, f"w_{part}"], [f"x_{part}"], f"w_{part}")
        for before, part in zip(names, added, strict=False)
    ]
    nodes.append(helper.make_node("MatMul", [names[-1], "w"], ["y"], "w"))
    weights["w"] = rng.normal(size=(64, 64)).astype(np.float32)
    path = save_model(nodes, {"x": ["n", 64]}, {"y": ["n", 64]}, weights)
    feeds = [{"x": rng.normal(size=(4, 64)).astype(np.float32)}]

    made = made_by(method, path, tmp_path / "q", feeds, ranges={names[-1]: Range(-12.0, 12.0)})

    assert relative_error(run(path, feeds[0])[0], run(made.path, feeds[0])[0]) < 0.2


def test_an_unknown_method_is_named_with_the_closest(perceptron: Path, digits, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'dynamik'") as caught:
        made_by("dynamik", perceptron, tmp_path / "q", digits.feeds())

    assert "dynamic" in caught.value.hint
