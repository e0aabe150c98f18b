"""Real Redis servers for tests, which can be killed, started again and made slow."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from services import free_port

_PATIENCE = 60


class RedisServer:
    """A Redis server on a port of its own, with its data in memory."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "RedisServer":
        command = [
            *(_program(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)),
            *("--save", "", "--appendonly", "no", *self._options),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _PATIENCE
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("Redis did not start.")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """Kill it, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def command(self, *words: str | bytes) -> bytes:
        """Send one command and read the beginning of its answer."""
        parts = [word if isinstance(word, bytes) else word.encode() for word in words]
        line = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(line)
            return connection.recv(2**20)

    def keys(self) -> list[bytes]:
        answer = self.command("KEYS", "*").split(b"\r\n")
        return answer[2::2]

    def connections(self) -> int:
        """How many were made to it so far, other than by this helper's last command."""
        for line in self.command("INFO", "stats").decode().splitlines():
            if line.startswith("total_connections_received:"):
                return int(line.partition(":")[2])
        raise AssertionError("Redis does not say.")

    def _listens(self) -> bool:
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _program() -> str:
    found = shutil.which("redis-server")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run([str(Path(__file__).with_name("install_redis.sh"))], check=True)
        found = shutil.which("redis-server")
    if found is None:
        pytest.fail("Redis is not installed; install Debian's redis-server, for example.")
    return found
