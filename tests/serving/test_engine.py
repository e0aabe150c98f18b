"""An engine in this process: what it says before it is ready, and how it passes on the faults of a model."""

import asyncio
import gc
import time
from datetime import UTC, datetime

import numpy as np
import pytest

from mlx_platform.core.errors import UnavailableError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.serving.app import App
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.http_exchange import RequestIds
from mlx_platform.serving.http_protocol import RESPOND
from mlx_platform.serving.job import Job
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.protocol_v2 import InferRequest
from mlx_platform.serving.refusal import Refusal
from mlx_platform.serving.rollout.feedback_desk import FeedbackDesk
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.router import Router
from mlx_platform.serving.served import Served


def exchange():
    now = time.monotonic()
    return Exchange("id", "infer", datetime.now(UTC), now, now + 20)


def request(value=1.0):
    return InferRequest(
        None, {"x": np.full((1, 4), value, np.float32)}, {}, ("probabilities",), frozenset(), None
    )


def with_engine(model, scenario, *, start=True, **settings):
    async def main():
        engine = Engine(model, ServingSettings(**settings), Metrics(), None)
        if start:
            await engine.start()
        try:
            return await scenario(engine)
        finally:
            await engine.close(1.0)

    return asyncio.run(main())


async def call(engine, method, path, body=b""):
    """One request to the application, without a connection under it."""
    answers = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    def respond(status, head, body, *, close):
        answers.append((status, head, body, close))

    scope = {"method": method, "raw_path": path, "headers": [], RESPOND: respond}
    settings = ServingSettings()
    feedback = FeedbackDesk.of(settings, Arms(settings))
    await App(Router(Served(engine, settings)), settings, RequestIds(), feedback)(scope, receive, None)
    feedback.close()
    (answer,) = answers
    return answer


def test_before_its_self_check_a_server_lives_and_is_not_ready(load):
    async def scenario(engine):
        assert not engine.ready
        for path in (b"/v2/health/ready", b"/v2/models/affine/ready"):
            assert (await call(engine, "GET", path))[0] == 503
        assert (await call(engine, "GET", b"/v2/health/live"))[0] == 200
        assert (await call(engine, "GET", b"/v2/models/affine"))[0] == 200
        for path in (b"/predict", b"/v2/models/affine/infer"):
            status, head, _, _ = await call(engine, "POST", path, b"{}")
            assert status == 503
            assert b"retry-after: 1" in head

    with_engine(load("affine"), scenario, start=False)


def test_after_the_end_a_server_refuses_and_closes_the_connection(load):
    async def scenario(engine):
        await engine.close(1.0)
        status, head, body, close = await call(engine, "POST", b"/predict", b"{}")
        assert (status, close) == (503, True)
        assert b"retry-after" in head
        assert b"shutting down" in body

    with_engine(load("affine"), scenario)


def test_a_fault_of_the_device_is_503_and_keeps_its_details_to_itself(load, monkeypatch):
    model = load("affine")

    def run(feeds, outputs=None, *, timeout=None):
        raise UnavailableError("The model failed on cpu: node SECRET ran out of memory.")

    async def scenario(engine):
        monkeypatch.setattr(model, "run", run)
        with pytest.raises(Refusal) as caught:
            await engine.infer(request(), exchange())
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        assert "SECRET" not in caught.value.message
        monkeypatch.undo()
        assert (await engine.infer(request(), exchange()))["probabilities"].shape == (1, 3)

    with_engine(model, scenario)


def test_memory_that_runs_out_is_503_for_that_request_only(load, monkeypatch):
    model = load("affine")
    real = model.run

    def run(feeds, outputs=None, *, timeout=None):
        if (feeds["x"] == 5).any():
            raise MemoryError
        return real(feeds, outputs, timeout=timeout)

    async def scenario(engine):
        monkeypatch.setattr(model, "run", run)
        tasks = [engine.infer(request(value), exchange()) for value in (1.0, 5.0, 2.0)]
        good, bad, other = await asyncio.gather(*tasks, return_exceptions=True)
        assert good["probabilities"].shape == other["probabilities"].shape == (1, 3)
        assert isinstance(bad, Refusal)
        assert bad.status == 503

    with_engine(model, scenario)


def test_requests_leave_nothing_behind_that_refers_to_itself(load):
    bodies = {
        200: b'{"inputs":[{"name":"i","datatype":"INT64","shape":[1,1],"data":[2]}]}',
        400: b'{"inputs":[{"name":"i","datatype":"INT64","shape":[1,1],"data":[99]}]}',
        504: b'{"inputs":[{"name":"i","datatype":"INT64","shape":[1,1],"data":[2]}],'
        b'"parameters":{"timeout":1}}',
    }

    def alive():
        return [thing for thing in gc.get_objects() if isinstance(thing, Exchange | Job)]

    async def scenario(engine):
        gc.collect()
        others = {id(thing): thing for thing in alive()}  # of other tests, kept so that no id comes again

        def left():
            return [thing for thing in alive() if id(thing) not in others]

        gc.disable()
        try:
            for expected, body in bodies.items():
                calls = [call(engine, "POST", b"/v2/models/lookup/infer", body) for _ in range(8)]
                statuses = {answer[0] for answer in await asyncio.gather(*calls)}
                await asyncio.sleep(0.2)  # until workers and timers have let go of the last ones
                assert (statuses, len(left())) == ({expected}, 0)
        finally:
            gc.enable()

    with_engine(load("lookup"), scenario)


def test_a_fault_of_our_own_is_500_in_the_same_form_and_logged(load, monkeypatch, caplog):
    async def scenario(engine):
        monkeypatch.setattr(engine, "predict", None)
        status, _, body, _ = await call(engine, "POST", b"/predict", b'{"rows":[[1,2,3,4]]}')
        assert status == 500
        assert b"fault of its own" in body
        assert b"NoneType" not in body

    with_engine(load("affine"), scenario)
    assert "NoneType" in caplog.text


def test_a_batch_that_memory_is_not_enough_for_is_answered_in_smaller_ones(packages):
    """An arena with room for what the network needs for some long rows, and not for a full batch of them."""
    package = open_package(packages["masked_mean"])
    model = Model.load(package, name="masked_mean", device="cpu", threads=1, memory=16 * 2**20)

    def call(ids):
        feeds = {"ids": ids, "mask": np.ones_like(ids)}
        return InferRequest(None, feeds, {}, ("mean",), frozenset(), None)

    async def scenario(engine):
        rows = [np.full((1, 2**16), value, np.int64) for value in range(32)]
        answers = await asyncio.gather(*[engine.infer(call(row), exchange()) for row in rows])
        table = [answer["mean"][0, 0] for answer in answers]
        assert len(set(table)) == 32
        alone = [(await engine.infer(call(row[:, :1]), exchange()))["mean"][0, 0] for row in rows]
        np.testing.assert_allclose(table, alone, rtol=1e-3)
        assert engine.batcher.starved_batches > 0
        assert engine.batcher.split_batches == 0
        with pytest.raises(Refusal, match="more memory than the model may use") as caught:
            await engine.infer(call(np.zeros((1, 2**22), np.int64)), exchange())
        assert (caught.value.status, caught.value.retry_after) == (413, None)

    with_engine(model, scenario)
