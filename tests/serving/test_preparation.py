"""Where the pipeline's steps run, that they give the same everywhere, and texts that are taken in parts."""

import asyncio
import multiprocessing
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from mlx_platform.core.errors import DeadlineError, UnavailableError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import text_column
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import MODEL, SPEC, open_package, seal
from mlx_platform.inference.spec import StepSpec, spec_from_network, write_spec
from mlx_platform.inference.steps.step import CellError
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.preparation import Preparation


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """The mean number of words in the parts of a text, of which each holds at most two."""
    folder = tmp_path_factory.mktemp("counting") / "package"
    (folder / "assets").mkdir(parents=True)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "tokens"])
    value = helper.make_tensor_value_info("value", TensorProto.FLOAT, ["n"])
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["floats", "axis"], ["value"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "g", [ids], [value], [numpy_helper.from_array(np.array([1]), "axis")])
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(network, folder / MODEL)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "w": 1}, unk_token="[UNK]"))  # noqa: S106 - of text
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "assets" / "tokenizer.json"))
    step = StepSpec("tokenize", {"column": "text", "max_length": 2, "length": "split", "max_parts": 4})
    spec = replace(spec_from_network(read_network(folder / MODEL)), task="regression", pre=(step,))
    (folder / SPEC).write_text(write_spec(spec))
    seal(folder)
    return Model.load(open_package(folder), name="counting", version="1", device="cpu", threads=1)


def asking(seconds=20.0):
    now = time.monotonic()
    return Exchange("id", "predict", datetime.now(UTC), now, now + seconds)


def texts(*words):
    return {"text": text_column(["w " * count for count in words])}


def with_preparation(model, settings, scenario):
    async def run():
        preparation = Preparation(model, settings)
        try:
            await preparation.start()
            await scenario(preparation)
        finally:
            preparation.close()

    asyncio.run(run())


def test_cheap_steps_run_on_the_event_loop_and_others_beside_it(load, counting, monkeypatch):
    for model, columns, beside in (
        (load("affine"), {"x": np.ones((1, 4))}, False),
        (counting, texts(1), True),
    ):
        threads = []
        prepare = model.prepare

        def watched(rows, *go_on, prepare=prepare, threads=threads):
            threads.append(threading.current_thread() is not threading.main_thread())
            return prepare(rows, *go_on)

        monkeypatch.setattr(model, "prepare", watched)

        async def scenario(preparation, columns=columns):
            await preparation.encode(columns, asking())

        with_preparation(model, ServingSettings(), scenario)
        assert threads == [beside]


def test_steps_in_processes_give_the_same_tensors_and_complaints(counting):
    async def scenario(preparation):
        encoded = await preparation.encode(texts(5, 1), asking())
        here = counting.prepare(texts(5, 1))
        assert encoded.feeds["input_ids"].tolist() == here.feeds["input_ids"].tolist()
        assert encoded.parts.counts.tolist() == [3, 1]
        assert set(encoded.seconds) == {"tokenize"}
        with pytest.raises(CellError) as caught:
            await preparation.encode(texts(1, 9), asking())
        assert (caught.value.row, caught.value.column) == (1, "text")
        assert "5 parts" in caught.value.problem

    with_preparation(counting, ServingSettings(pipeline_processes=1), scenario)


def test_a_process_that_dies_costs_no_request(counting):
    async def scenario(preparation):
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        for _ in range(3):
            assert (await preparation.encode(texts(2), asking())).feeds["input_ids"].tolist() == [[1, 1]]

    with_preparation(counting, ServingSettings(pipeline_processes=1), scenario)


@pytest.fixture
def endless(counting, monkeypatch):
    """A model whose steps go on until nobody waits any more; the event is set when they notice."""
    noticed = threading.Event()

    def prepare(_rows, go_on):
        try:
            while True:
                go_on()
                time.sleep(0.001)
        except DeadlineError:
            noticed.set()
            raise

    monkeypatch.setattr(counting, "prepare", prepare)
    return counting, noticed


def test_steps_end_at_the_deadline(endless):
    model, noticed = endless

    async def scenario(preparation):
        with pytest.raises(DeadlineError):
            await preparation.encode(texts(1), asking(0.05))
        assert await asyncio.to_thread(noticed.wait, 20)

    with_preparation(model, ServingSettings(), scenario)


def test_steps_end_when_the_client_has_gone(endless):
    model, noticed = endless

    async def scenario(preparation):
        exchange = asking()
        task = asyncio.ensure_future(preparation.encode(texts(1), exchange))
        await asyncio.sleep(0.01)
        exchange.abandoned = True
        exchange.waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(noticed.wait, 20)

    with_preparation(model, ServingSettings(), scenario)


def test_whoever_waits_at_the_end_is_told_so(endless):
    model, noticed = endless

    async def scenario(preparation):
        task = asyncio.ensure_future(preparation.encode(texts(1), asking()))
        await asyncio.sleep(0.01)
        preparation.close()
        with pytest.raises(UnavailableError, match="shutting down"):
            await task
        assert await asyncio.to_thread(noticed.wait, 20)

    with_preparation(model, ServingSettings(), scenario)


def test_a_served_text_in_parts_is_answered_as_one(counting):
    async def scenario():
        engine = Engine(counting, ServingSettings(max_batch_size=3), Metrics(), None)
        await engine.start()
        try:
            exchange = asking()
            answers = await engine.predict([{"text": "w " * count} for count in (7, 1, 3)], exchange)
            assert answers["value"].tolist() == pytest.approx([13 / 7, 1, 5 / 3])
            assert answers["value"].tolist() == counting.predict(texts(7, 1, 3)).columns["value"].tolist()
            assert "tokenize" in exchange.step_seconds
            samples = {sample.name: sample for source in engine.metrics.sources for sample in source()}
            assert samples["mlx_pipeline_step_runs"].value == 1
            assert samples["mlx_pipeline_step_seconds"].value == exchange.step_seconds["tokenize"]
        finally:
            await engine.close(1.0)

    asyncio.run(scenario())
