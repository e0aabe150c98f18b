import logging
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from mlx_platform.serving.capture import Capture
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.trace import Trace

MOMENT = datetime(2026, 3, 8, 6, 59, 58, tzinfo=UTC)


def exchange(name="r1", inputs=None, outputs=None):
    made = Exchange(name, "predict", MOMENT, 0.0, 1.0, rows=2, batch_rows=8)
    made.inputs = inputs or {"x": np.array([1.5, 2.5])}
    made.outputs = outputs or {}
    made.seconds = {"queue": 0.00123456}
    made.step_seconds = {"tokenize": 0.002}
    made.trace = Trace("1" * 32, "2" * 16)
    return made


def texts(*cells):
    column = np.empty(len(cells), object)
    column[:] = cells
    return column


@pytest.fixture
def capture():
    return Capture(lambda: MOMENT)


def test_it_is_off_until_it_is_asked_for(capture):
    capture.add(exchange(), 200, "", 0.1)
    assert not capture.on
    assert capture.document() == {"on": False, "until": None, "share": 1.0, "seen": 0, "requests": []}


def test_it_keeps_requests_with_their_data_timings_and_batch_size(capture):
    capture.start(5)
    capture.add(exchange("first"), 200, "", 0.1)
    capture.add(
        exchange("second", outputs={"label": texts("a", "b")}),
        400,
        "It failed.",
        0.2,
    )
    document = capture.document()
    assert (document["on"], document["until"], document["seen"]) == (True, "2026-03-08T07:04:58Z", 2)
    newest, oldest = document["requests"]
    assert (oldest["request_id"], newest["request_id"]) == ("first", "second")
    assert newest == {
        "time": "2026-03-08T06:59:58Z",
        "request_id": "second",
        "trace_id": "1" * 32,
        "endpoint": "predict",
        "status": 400,
        "rows": 2,
        "batch_rows": 8,
        "cache": "off",
        "timings_ms": {"queue": 1.2346, "total": 200.0},
        "steps_ms": {"tokenize": 2.0},
        "error": "It failed.",
        "inputs": {"x": {"datatype": "FP64", "shape": [2], "data": [1.5, 2.5]}},
        "outputs": {"label": {"datatype": "BYTES", "shape": [2], "data": ["a", "b"]}},
    }


def test_what_is_shown_is_masked(capture):
    inputs = {
        "text": texts("mail jane@example.org", "call 0171 123456"),
        "customer_name": texts("Jane", "Joe"),
        "zip": np.array([10115, 20095]),
        "amount": np.array([3.5, 4111111111111111.0]),
        "photo": texts(b"\xff\xd8", b"\xff"),
    }
    capture.start(5)
    capture.add(exchange(inputs=inputs), 400, "No column for jane@example.org.", 0.1)
    (request,) = capture.document()["requests"]
    assert {name: value["data"] for name, value in request["inputs"].items()} == {
        "text": ["mail [email]", "call [number]"],
        "customer_name": ["[masked]"],
        "zip": ["[masked]"],
        "amount": [3.5, "[number]"],
        "photo": ["[2 bytes]", "[1 bytes]"],
    }
    assert "jane" not in request["error"]


def test_it_keeps_the_head_of_large_requests_and_nothing_of_their_batches(capture):
    batch = np.zeros((1000, 1000), np.float32)
    capture.start(5)
    capture.add(exchange(inputs={"x": batch[:500], "t": texts("é" * 10**6)}), 200, "", 0.1)
    (request,) = capture.document()["requests"]
    assert request["inputs"]["x"]["shape"] == [500, 1000]
    assert len(request["inputs"]["x"]["data"]) == 32
    assert len(request["inputs"]["t"]["data"][0]) <= 1024


def test_it_keeps_the_last_requests_only(capture):
    capture.start(5)
    for number in range(300):
        capture.add(exchange(f"r{number}"), 200, "", 0.1)
    document = capture.document()
    assert (document["seen"], len(document["requests"])) == (300, 200)
    assert document["requests"][0]["request_id"] == "r299"


def test_it_keeps_a_share_of_the_requests(capture):
    capture.start(5, share=0.3)
    for number in range(150):
        capture.add(exchange(f"r{number}"), 200, "", 0.1)
    assert 15 < len(capture.document()["requests"]) < 80


def test_it_ends_by_itself_and_forgets_everything(monkeypatch, caplog):
    capture = Capture(lambda: MOMENT)
    with caplog.at_level(logging.WARNING):
        capture.start(5)
        capture.add(exchange(), 200, "", 0.1)
        later = capture._end + 1
        monkeypatch.setattr("mlx_platform.serving.capture.time.monotonic", lambda: later)
        assert not capture.on
        capture.add(exchange("late"), 200, "", 0.1)
        assert capture.document()["requests"] == []
    assert "Debug mode is on until 2026-03-08T07:04:58Z" in caplog.text
    assert "Debug mode is off" in caplog.text


def test_stopping_forgets_everything_and_starting_begins_anew(capture):
    capture.start(5)
    capture.add(exchange(), 200, "", 0.1)
    capture.start(timedelta(minutes=1).seconds / 60)
    assert capture.document()["requests"] == []
    capture.add(exchange(), 200, "", 0.1)
    capture.stop()
    capture.stop()
    assert capture.document()["requests"] == []
    assert not capture.on
