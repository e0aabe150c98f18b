import asyncio
import http.client
import threading
import time

import pytest

from mlx_platform.serving.back_thread import BackThread
from mlx_platform.serving.http_protocol import RESPOND, HttpLimits
from mlx_platform.serving.listener import bind
from mlx_platform.serving.pulse import Pulse


async def say_hello(scope, receive, _send):
    await receive()
    scope[RESPOND](200, b"content-length: 5\r\n", b"hello")


def ask(address):
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_it_answers_while_the_loop_that_started_it_is_busy():
    answers = []

    async def busy():
        back = BackThread(say_hello, bind("127.0.0.1", 0, "--admin-port"), HttpLimits())
        back.start()
        address = back.address
        caller = threading.Thread(target=lambda: answers.append(ask(address)))
        caller.start()
        caller.join(10)  # on the event loop, which does nothing else meanwhile
        back.stop()
        return address

    address = asyncio.run(busy())
    assert answers == [b"hello"]
    with pytest.raises(ConnectionRefusedError):
        ask(address)


def test_stopping_ends_the_thread_and_can_be_done_twice():
    back = BackThread(say_hello, bind("127.0.0.1", 0, "--admin-port"), HttpLimits())
    back.stop()
    back = BackThread(say_hello, bind("127.0.0.1", 0, "--admin-port"), HttpLimits())
    back.start()
    back.stop()
    back.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "mlx-admin"]


def test_the_pulse_of_a_loop_that_hangs_stops(monkeypatch):
    now = time.monotonic()
    lags = []

    async def live():
        pulse = Pulse()
        pulse.start()
        lags.append((pulse.lag < 1, pulse.alive))
        monkeypatch.setattr(time, "monotonic", lambda: now + 60)
        lags.append((pulse.lag > 50, pulse.alive))
        monkeypatch.undo()
        pulse.stop()

    asyncio.run(live())
    assert lags == [(True, True), (True, False)]
