import hashlib
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from smaller import quantize

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.quantize.agreement import relative_error
from mlx_platform.quantize.methods import Made
from mlx_platform.quantize.rule import Rule
from mlx_platform.quantize.runtime import quiet, start
from mlx_platform.quantize.target import ARM, AVX2, Target


def make(path: Path, folder: Path, feeds, **options) -> Made:
    return quantize(path, folder, iter(feeds), feeds[:2], **options)


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return start(path).run(None, feeds)


def images(rows: int = 8, batches: int = 6) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.uniform(0, 1, (rows, 1, 16, 16)).astype(np.float32)} for _ in range(batches)]


def test_a_perceptron_shrinks_and_keeps_its_accuracy(perceptron: Path, digits, tmp_path: Path) -> None:
    made = make(perceptron, tmp_path / "q", digits.feeds())

    before, after = (run(path, {"X": digits.test}) for path in (perceptron, made.path))
    accuracy = [float(np.mean(answers[0] == digits.test_labels)) for answers in (before, after)]
    assert made.verified.size_after < 0.45 * made.verified.size_before
    assert accuracy[0] > 0.9
    assert abs(accuracy[1] - accuracy[0]) <= 0.01
    assert np.mean(before[1].argmax(axis=1) == after[1].argmax(axis=1)) > 0.98


def test_the_processor_runs_every_layer_in_integers(perceptron: Path, digits, tmp_path: Path) -> None:
    verified = make(perceptron, tmp_path / "q", digits.feeds()).verified

    assert verified.quantized_layers == 3
    assert sum(verified.kernels.values()) == 3
    assert verified.quantize_nodes == 3  # one for each layer's input, none for the floats they write


def test_softmax_stays_float(perceptron: Path, digits, tmp_path: Path) -> None:
    model = onnx.load(make(perceptron, tmp_path / "q", digits.feeds()).path)

    producers = {output: node.op_type for node in model.graph.node for output in node.output}
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    readers = {node.op_type for node in model.graph.node if softmax.output[0] in node.input}
    assert producers[softmax.input[0]] == "Gemm"
    assert "QuantizeLinear" not in readers


def test_convolutions_are_quantized_per_channel_and_the_sum_is_not(
    convolutional: Path, tmp_path: Path
) -> None:
    made = make(convolutional, tmp_path / "q", images())

    model = onnx.load(made.path)
    scales = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    assert scales["w1_scale"] == scales["w2_scale"] == [16]
    assert scales["w3_scale"] == [10]
    assert made.verified.quantized_layers == 3
    assert made.built.plan.followers == ("relu1", "pool")
    feeds = images()[0]
    assert relative_error(run(convolutional, feeds)[0], run(made.path, feeds)[0]) < 0.05


def test_the_worst_layers_come_first(convolutional: Path, tmp_path: Path) -> None:
    errors = make(convolutional, tmp_path / "q", images()).layer_errors

    assert {entry.node for entry in errors} == {"conv1", "conv2", "head"}
    assert [entry.error for entry in errors] == sorted((entry.error for entry in errors), reverse=True)
    assert 0 < errors[0].error < 0.1


def test_an_embedding_becomes_a_table_of_bytes(embedding, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = embedding(32)
    feeds = [{"ids": rng.integers(0, 500, (4, length)).astype(np.float32)} for length in (3, 9, 5)]

    made = make(path, tmp_path / "q", feeds)

    assert made.verified.size_after < 0.35 * made.verified.size_before
    for batch in feeds:
        assert relative_error(run(path, batch)[0], run(made.path, batch)[0]) < 0.05


def saturating_rows() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.uniform(0.8, 1.0, (4, 256)).astype(np.float32)} for _ in range(10)]


def test_weights_use_all_their_bits_where_that_is_safe(saturating: Path, tmp_path: Path) -> None:
    def widest(target: Target, name: str) -> int:
        made = make(saturating, tmp_path / name, saturating_rows(), target=target)
        stored = {tensor.name: tensor for tensor in onnx.load(made.path).graph.initializer}
        return int(np.abs(onnx.numpy_helper.to_array(stored["w_quantized"]).astype(int)).max())

    assert widest(AVX2, "avx2") <= 64
    assert widest(ARM, "arm") == 127


def test_percentile_ranges_are_narrower(perceptron: Path, digits, tmp_path: Path) -> None:
    plain = make(perceptron, tmp_path / "a", digits.feeds())
    clipped = make(perceptron, tmp_path / "b", digits.feeds(), rule=Rule("percentile", 99.0))

    assert all(clipped.ranges[name].highest <= found.highest for name, found in plain.ranges.items())
    assert any(clipped.ranges[name].highest < found.highest for name, found in plain.ranges.items())


def test_the_same_rows_give_the_same_bytes_in_another_process(
    perceptron: Path, digits, tmp_path: Path
) -> None:
    made = make(perceptron, tmp_path / "q", digits.feeds())
    np.save(tmp_path / "rows.npy", digits.calibration)
    code = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from smaller import quantize\n"
        "rows = np.load('rows.npy'); feeds = [{'X': rows[i:i + 32]} for i in range(0, len(rows), 32)]\n"
        "quantize(Path(sys.argv[1]), Path('again'), iter(feeds), feeds[:2])\n"
    )
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code, str(perceptron)], check=True, cwd=tmp_path, env=here)

    digests = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (made.path, tmp_path / "again/made.onnx")
    ]
    assert digests[0] == digests[1]


def test_two_runs_at_once_on_one_source_do_not_meet(perceptron: Path, digits, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda name: make(perceptron, tmp_path / name, digits.feeds()), ("a", "b")))

    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    assert sorted(path.name for path in perceptron.parent.iterdir()) == ["perceptron.onnx"]


def test_a_quantized_model_is_not_quantized_again(perceptron: Path, digits, tmp_path: Path) -> None:
    made = make(perceptron, tmp_path / "q", digits.feeds())

    with pytest.raises(UndecidedError, match="already quantized"):
        make(made.path, tmp_path / "again", digits.feeds())


def test_a_row_with_nan_is_named_and_nothing_is_made(perceptron: Path, digits, tmp_path: Path) -> None:
    feeds = digits.feeds()
    feeds[2] = {"X": feeds[2]["X"].copy()}
    feeds[2]["X"][5, 7] = np.nan

    with pytest.raises(UsageError, match=r"row 69 .*'X'"):
        make(perceptron, tmp_path / "q", feeds)
    assert not (tmp_path / "q" / "made.onnx").exists()


def test_a_layer_that_no_row_reached_stays_float(save_model, tmp_path: Path) -> None:
    path = save_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "only")],
        {"x": ["n", "l", 4]},
        {"y": ["n", "l", 4]},
        {"w": np.eye(4, dtype=np.float32)},
    )

    with pytest.raises(UndecidedError, match="reached"):
        make(path, tmp_path / "q", [{"x": np.empty((2, 0, 4), np.float32)}])


def test_the_quantizers_notes_reach_nobodys_log(
    perceptron: Path,
    digits,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), list(root.filters))

    with caplog.at_level(logging.INFO):
        make(perceptron, tmp_path / "q", digits.feeds())

    assert caplog.messages == []
    assert capfd.readouterr() == ("", "")
    assert (root.level, list(root.handlers), list(root.filters)) == before


def test_other_peoples_warnings_pass_while_the_quantizer_works(caplog: pytest.LogCaptureFixture) -> None:
    with quiet() as notes:
        logging.getLogger().warning("disk almost full")

    assert caplog.messages == ["disk almost full"]
    assert notes == []
