from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from grpc_client import Client


@pytest.fixture
def connect() -> Iterator[Callable[[Any], Client]]:
    """Connect to a server that the fixtures of this folder started."""
    with ExitStack() as stack:

        def to(server: Any) -> Client:
            client = Client(server.addresses["grpc_url"])
            stack.callback(client.channel.close)
            return client

        yield to
