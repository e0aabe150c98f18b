"""Redis servers of a test's own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_servers import RedisServer


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server of the test's own."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture
def redis_servers(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Make Redis servers that are not started yet."""
    made: list[RedisServer] = []

    def make(*options: str) -> RedisServer:
        made.append(RedisServer(tmp_path, *options))
        return made[-1]

    yield make
    for server in made:
        server.stop()
