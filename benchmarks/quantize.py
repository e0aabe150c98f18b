"""Smaller models beside those of `onnxruntime.quantization`, and what calibration costs.

    python quantize.py [--only PART] [--rows N] [--calibration N]

Two real networks and real rows: a text encoder with a head that tells packages by their docstrings, and a
classifier of files, with the files of this machine. Speeds are taken in turns with the float32 model, one row
at a time on one thread, by what that thread computes, in rounds that all candidates take part in.
"""

import argparse
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import table
from networks import Answer, Feeds, Task, files_task, texts_task

from mlx_platform.core.errors import MlxError
from mlx_platform.inference.session import runtime
from mlx_platform.quantize.agreement import mean_divergence
from mlx_platform.quantize.calibrate import Range, calibrate
from mlx_platform.quantize.latency import ROUNDS, Pairs, Race, clock_of, one_round, summarize
from mlx_platform.quantize.methods import METHODS, make, plan_of
from mlx_platform.quantize.prepare import Prepared, prepare
from mlx_platform.quantize.rule import Rule, parse_rule
from mlx_platform.quantize.storage import size_with_weights
from mlx_platform.quantize.target import this_machine

MLX = str(Path(sys.executable).parent / "mlx")
_ALLOWED = ["MatMul", "Gemm", "Conv", "Gather"]
_CALIBRATION_BUDGET = 1.2  # times the CPU of ONNX Runtime's MinMax
_MEMORY_BUDGET = 512  # MB
_ROUND_SECONDS, _ROUND_PAIRS = 1.0, 50
PARTS = ("calibration", "texts", "files", "refusals")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000, help="judged texts")
    parser.add_argument("--calibration", type=int, default=1000, help="texts to calibrate on")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--child", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        _calibrate_alone(chosen.child[0], Path(chosen.child[1]))
        return
    logging.disable(logging.WARNING)  # the library advises on what is done here on purpose
    parts = [chosen.only] if chosen.only else PARTS
    with tempfile.TemporaryDirectory(prefix="mlx-bench-") as name:
        folder = Path(name)
        os.environ["MLX_CACHE_DIR"] = str(folder / "cache")
        if {"calibration", "texts"} & set(parts):
            texts = texts_task(folder / "texts", chosen.rows, chosen.calibration)
            if "calibration" in parts:
                _calibrations(texts, folder / "calibration")
            if "texts" in parts:
                _candidates(texts, folder / "candidates-of-texts")
        if "files" in parts:
            _candidates(files_task(folder / "files"), folder / "candidates-of-files")
        if "refusals" in parts:
            _refusals(folder / "refused")


def _candidates(task: Task, folder: Path) -> None:
    """Every method of ours and what comes out of the library's two functions, beside the float32 model."""
    folder.mkdir()
    before = _Session(task.model)
    expected = before.answers(task.judged)
    made = dict(_made(task, folder))
    sessions = {name: _Session(path) for name, path in made.items() if not isinstance(path, MlxError)}
    races = _races(
        before.caller(task.raced), {name: session.caller(task.raced) for name, session in sessions.items()}
    )
    lines = []
    for name, path in made.items():
        if isinstance(path, MlxError):
            lines.append((name, path.message[:60], "", "", "", "", ""))
            continue
        found, timed = sessions[name].answers(task.judged), races[name]
        lines.append(
            (
                name,
                f"{size_with_weights(path) / size_with_weights(task.model):.3f}",
                f"{np.mean(found.argmax(axis=1) == expected.argmax(axis=1)):.4f}",
                f"{np.mean(found.argmax(axis=1) == task.truth):.4f}",
                f"{mean_divergence(expected, found):.2g}",
                f"{timed.speedup:.2f} [{timed.lower:.2f}, {timed.upper:.2f}]",
                f"{timed.before_ms:.1f} / {timed.after_ms:.1f}",
            )
        )
    accuracy = np.mean(expected.argmax(axis=1) == task.truth)
    rows = len(task.truth)
    table(
        f"{task.name}: {rows:,} rows, accuracy in float32 {accuracy:.4f}, for {this_machine()}",
        lines,
        ("candidate", "size, times", "agreement", "accuracy", "KL", "times as fast", "ms before / after"),
    )


def _races(before: Callable[[], object], after: Mapping[str, Callable[[], object]]) -> Mapping[str, Race]:
    """Every candidate against the original, round by round, each round in an order that has moved on."""
    names = list(after)
    rounds: dict[str, list[Pairs]] = {name: [] for name in names}
    for call in after.values():
        call()
    for number in range(ROUNDS):
        first = number * len(names) // ROUNDS
        for name in names[first:] + names[:first]:
            rounds[name].append(
                one_round(
                    before,
                    after[name],
                    seconds=_ROUND_SECONDS,
                    most=_ROUND_PAIRS,
                    clock=clock_of(1),
                    swapped=bool(number % 2),
                )
            )
    return {name: summarize(found) for name, found in rounds.items()}


def _made(task: Task, folder: Path) -> Iterator[tuple[str, Path | MlxError]]:
    """Names and files; one that a method cannot make is its error."""
    runtime()
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    plain = folder / "plain.onnx"
    quantize_static(task.model, plain, _reader(task.calibration[:200]))
    yield "onnxruntime static, as it comes", plain
    dynamic = folder / "dynamic.onnx"
    quantize_dynamic(task.model, dynamic, weight_type=QuantType.QInt8)
    yield "onnxruntime dynamic, as it comes", dynamic
    work = folder / "work"
    work.mkdir()
    prepared = prepare(task.model, work, task.judged[:2])
    for method, recipe in METHODS.items():
        for rule in (
            (Rule(), parse_rule("percentile"), parse_rule("entropy")) if recipe.calibrated else (None,)
        ):
            name = f"mlx {method}, {rule}" if rule else f"mlx {method}"
            out = folder / f"{name.replace(' ', '-').replace(',', '').replace(':', '')}.onnx"
            try:
                ranges = _ranges(task, method, prepared, work, rule) if rule else None
                yield (
                    name,
                    make(method, prepared, out, task.judged[:2], this_machine(), ranges=ranges).path,
                )
            except MlxError as error:
                yield name, error


def _ranges(task: Task, method: str, prepared: Prepared, folder: Path, rule: Rule) -> Mapping[str, Range]:
    tensors = plan_of(method, prepared).tensors
    seen = calibrate(prepared.path, tensors, task.calibration, folder, extremes_only=rule.extremes_only)
    return rule.ranges(seen)


class _Session:
    """A model on one thread; the last of its outputs is taken for the probabilities."""

    def __init__(self, path: Path) -> None:
        onnxruntime = runtime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._run = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run

    def answers(self, feeds: Sequence[Feeds]) -> Answer:
        return np.concatenate([self._run(None, feed)[-1] for feed in feeds])

    def caller(self, feed: Feeds) -> Callable[[], object]:
        return lambda: self._run(None, feed)


def _reader(feeds: Sequence[Feeds]) -> Any:
    runtime()
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc] - the library has no types
        def __init__(self) -> None:
            self._rest = iter(feeds)

        def get_next(self) -> Feeds | None:
            return next(self._rest, None)

    return Reader()


SIDES = {
    "onnxruntime": "onnxruntime MinMax",
    "minmax": "mlx minmax",
    "entropy": "mlx percentile or entropy",
}


def _calibrations(task: Task, folder: Path) -> None:
    """CPU time of calibrating, and the peak memory of a process that does nothing else."""
    folder.mkdir()
    prepared = prepare(task.model, folder, task.judged[:2])
    prepared.path.replace(folder / "model.onnx")
    (folder / "feeds.pickle").write_bytes(pickle.dumps(list(task.calibration)))
    for side in SIDES:
        subprocess.run([sys.executable, __file__, "--child", side, str(folder)], check=True)
    costs = {side: json.loads((folder / f"{side}.json").read_text()) for side in SIDES}
    library = costs["onnxruntime"]["cpu"]
    table(
        f"Calibration on {len(task.calibration):,} texts of true lengths (budgets:"
        f" {_CALIBRATION_BUDGET} x onnxruntime, {_MEMORY_BUDGET} MB)",
        [
            (SIDES[side], f"{cost['cpu']:.1f}", f"{cost['cpu'] / library:.2f}", f"{cost['memory']:.0f}")
            for side, cost in costs.items()
        ],
        ("side", "CPU s", "times onnxruntime", "peak, MB"),
    )


def _calibrate_alone(side: str, folder: Path) -> None:
    import onnx

    from mlx_platform.quantize.plan import plan

    feeds = pickle.loads((folder / "feeds.pickle").read_bytes())  # noqa: S301 - written by the parent
    model = folder / "model.onnx"
    tensors = plan(onnx.load(model)).tensors
    runtime()
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    began = time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        if side != "onnxruntime":
            calibrate(model, tensors, feeds, Path(name), extremes_only=side == "minmax")
        else:
            calibrator = create_calibrator(
                str(model),
                _ALLOWED,
                augmented_model_path=f"{name}/watched.onnx",
                calibrate_method=CalibrationMethod.MinMax,
            )
            calibrator.collect_data(_reader(feeds))
            calibrator.compute_data()
    cost = {"cpu": time.process_time() - began, "memory": _peak()}
    (folder / f"{side}.json").write_text(json.dumps(cost))


def _peak() -> float:
    """The most memory that this process held, in MB; unlike getrusage it counts from the start of Python."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _refusals(folder: Path) -> None:
    """What `mlx quantize` answers where INT8 does not pay."""
    folder.mkdir()
    forest, perceptron, tiny, narrow, rows = _digits(folder)
    quantized, out = folder / "perceptron.int8.onnx", ("-o", folder / "out.onnx")
    asked: dict[str, list[object]] = {
        "perceptron": [perceptron, "-o", quantized],
        "the quantized perceptron again": [quantized, *out],
        "forest of trees": [forest, *out],
        "perceptron of 4 neurons": [tiny, *out],
        "convolutions of 4 channels": [narrow, *out, "--max-drop", "50pp"],
        "convolutions of 4 channels, at any speed": [
            narrow,
            *out,
            *("--max-drop", "50pp", "--min-speedup", "0"),
        ],
    }
    shared = ["--max-drop", "5pp", "--max-evals", "0", "--calibration", rows[0], "--data", rows[1], "--json"]
    lines = []
    for name, arguments in asked.items():
        done = subprocess.run(
            [MLX, "quantize", *map(str, (*shared, *arguments))],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        answer = json.loads(done.stdout or done.stderr)
        missed = [
            gate["name"] for gate in (answer["data"] or {}).get("gates", ()) if gate["verdict"] != "pass"
        ]
        said = answer["error"]["message"] if answer["data"] is None else ", ".join(missed) or "made"
        lines.append((name, str(done.returncode), said))
    table("Refusals", lines, ("model", "exit code", "answer"))


def _digits(folder: Path) -> tuple[Path, Path, Path, Path, tuple[Path, Path]]:
    """Four classifiers of handwritten digits, and rows to calibrate on and to judge by."""
    import onnx
    import pandas as pd
    from skl2onnx import to_onnx
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neural_network import MLPClassifier

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels, labels = pixels[order].astype(np.float32), labels[order]
    paths = {}
    for name, estimator in (
        ("forest", RandomForestClassifier(10, random_state=0)),
        ("perceptron", MLPClassifier((96, 48), max_iter=80, random_state=0, early_stopping=True)),
        ("tiny", MLPClassifier((4,), "tanh", max_iter=300, learning_rate_init=0.01, random_state=0)),
    ):
        estimator.fit(pixels[:700], labels[:700])
        paths[name] = folder / f"{name}.onnx"
        onnx.save(to_onnx(estimator, pixels[:1], options={"zipmap": False}, target_opset=17), paths[name])
    files = folder / "calibration.parquet", folder / "judged.parquet"
    for path, part in zip(files, (slice(700, 1000), slice(1000, None)), strict=True):
        rows = pd.DataFrame(pixels[part], columns=[f"p{index:02}" for index in range(64)])
        rows.assign(label=labels[part].astype(str)).to_parquet(path)
    narrow = _narrow(folder / "narrow", pixels[:700], labels[:700])
    return paths["forest"], paths["perceptron"], paths["tiny"], narrow, files


def _narrow(folder: Path, pixels: Answer, labels: Answer) -> Path:
    """Random convolutions of four channels over the enlarged image, with a head that was fitted to them.

    So few channels leave 8-bit products idle, while their bytes are counted and scaled all the same.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(0)
    kernels = [generator.normal(size=(4, depth, 3, 3)) / depth for depth in (1, 4, 4, 4)]
    weights = {f"w{place}": kernel for place, kernel in enumerate(kernels)}
    nodes = [
        helper.make_node("Reshape", ["x", "image"], ["i"]),
        helper.make_node("Resize", ["i", "", "enlarged"], ["r0"], mode="linear"),
    ]
    for place in range(len(kernels)):
        nodes += [
            helper.make_node("Conv", [f"r{place}", f"w{place}"], [f"c{place}"], f"conv{place}", pads=[1] * 4),
            helper.make_node("Sigmoid", [f"c{place}"], [f"r{place + 1}"]),
        ]
    size = [16, 16]
    nodes += [
        helper.make_node("AveragePool", [f"r{len(kernels)}"], ["p"], kernel_shape=size, strides=size),
        helper.make_node("Flatten", ["p"], ["features"]),
    ]

    def saved(name: str, width: int) -> Path:
        tensors = [numpy_helper.from_array(array.astype(np.float32), key) for key, array in weights.items()]
        tensors.append(numpy_helper.from_array(np.array([-1, 1, 8, 8], np.int64), "image"))
        tensors.append(numpy_helper.from_array(np.array([1, 1, 16, 16], np.float32), "enlarged"))
        ends = [("x", 64), (name, width)]
        value, result = (helper.make_tensor_value_info(key, TensorProto.FLOAT, ["n", k]) for key, k in ends)
        graph = helper.make_graph(nodes, "narrow", [value], [result], tensors)
        path = folder / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    folder.mkdir()
    features = _Session(saved("features", 4 * 64)).answers([{"x": row[None]} for row in pixels])
    middle, spread = features.mean(axis=0), features.std(axis=0) + 1e-6
    head = LogisticRegression(C=0.01).fit((features - middle) / spread, labels)
    weights["head"] = (head.coef_ / spread).T
    weights["bias"] = head.intercept_ - (head.coef_ / spread) @ middle
    nodes += [
        helper.make_node("Gemm", ["features", "head", "bias"], ["z"], "last"),
        helper.make_node("Softmax", ["z"], ["probabilities"]),
    ]
    saved("probabilities", 10)
    names = json.dumps([str(label) for label in range(10)])
    (folder / "model.toml").write_text(f'format = 1\ntask = "classification"\nlabels = {names}\n')
    return folder


if __name__ == "__main__":
    main()
