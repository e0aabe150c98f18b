"""A listener that closes while clients go on opening connections."""

import asyncio
import socket
import sys
import threading
from collections import Counter

import pytest
import uvloop

from mlx_platform.serving.http_protocol import RESPOND, HttpLimits
from mlx_platform.serving.listener import Listener, bind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a filter in the kernel")

REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


async def application(scope, receive, send):
    scope[RESPOND](200, b"content-length: 2\r\n", b"ok")


async def started(listening):
    listener = Listener(application, listening, HttpLimits())
    await listener.start()
    return listener


def run(coroutine):
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)


class Clients:
    """Open a connection for each request until they are refused one; `outcomes` tells how each went."""

    def __init__(self, port, count):
        self.outcomes = Counter()
        self._threads = [threading.Thread(target=self._ask, args=(port,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, port):
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                    connection.sendall(REQUEST)
                    outcome = connection.recv(1000).partition(b"\r\n")[0]
            except ConnectionRefusedError:
                return
            except OSError as error:
                outcome = repr(error)
            self.outcomes[outcome] += 1

    def join(self):
        for thread in self._threads:
            thread.join(30)


def test_every_connection_that_was_made_is_answered():
    async def close_under_load():
        for _ in range(5):
            listener = await started(bind("127.0.0.1", 0, "--port"))
            clients = Clients(listener.address[1], 8)
            await asyncio.sleep(0.1)
            await listener.stop_accepting()
            await listener.wait_for_end(10, 0.5)
            listener.abort()
            await asyncio.to_thread(clients.join)
            assert set(clients.outcomes) == {b"HTTP/1.1 200 OK"}

    run(close_under_load())


class LateCaller(socket.socket):
    """A listening socket to which somebody connects after it was found to have nobody in its queue."""

    def accept(self):
        try:
            return super().accept()
        except BlockingIOError:
            self.late = socket.socket()
            self.late.setblocking(False)
            self.late.connect_ex(self.getsockname())
            raise


def test_nobody_is_let_in_of_whom_nobody_would_know():
    async def close():
        listening = LateCaller(fileno=bind("127.0.0.1", 0, "--port").detach())
        listening.setblocking(False)
        listener = await started(listening)
        loop = asyncio.get_running_loop()
        with socket.socket() as early:
            early.connect(listener.address)  # in the queue: nobody takes it while this thread goes on
            early.setblocking(False)
            await listener.stop_accepting()
            with listening.late as late:
                assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0  # not reset: it still knocks
            await loop.sock_sendall(early, REQUEST)
            assert (await loop.sock_recv(early, 1000)).startswith(b"HTTP/1.1 200")
        await listener.wait_for_end(10, 0.5)
        listener.abort()

    run(close())
