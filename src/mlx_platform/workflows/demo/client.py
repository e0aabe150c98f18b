"""A server process of the demo's own, and callers that send it digits."""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import DeadlineError, MlxError
from mlx_platform.core.progress import Advance
from mlx_platform.workflows.demo.digits import PIXELS, Pixels

_CALLERS = 8
_STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    url: str
    version: str


@contextmanager
def running_server(folder: Path, reference: str, traffic: Path) -> Iterator[Server]:
    """Serve a reference as `mlx serve` does, in a process of its own; stopped and drained on the way out.

    Raises:
        MlxError: the server did not become ready, or did not end cleanly.
    """
    command = [
        *(sys.executable, "-m", "mlx_platform.cli", "serve", reference, "--json"),
        *("--config", str(folder / "mlx.toml"), "--traffic", str(traffic)),
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=os.environ.copy())
    try:
        yield _announced(process, folder)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise DeadlineError(f"The server was still running {_STOP_SECONDS} s after SIGTERM.") from error
    if code:
        raise MlxError(f"The server ended with exit code {code}.", hint=f"See {folder / 'server.log'}.")


def _announced(process: "subprocess.Popen[bytes]", folder: Path) -> Server:
    """Read the one JSON document that a server prints when it is ready."""
    lines: list[bytes] = []
    for line in process.stdout or ():
        lines.append(line)
        if line.rstrip() == b"}":
            break
    try:
        data: dict[str, Any] = orjson.loads(b"".join(lines))["data"]
        host, _, port = data["url"].removeprefix("http://").rpartition(":")
        return Server(host, int(port), data["url"], data["version"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise MlxError("The server did not become ready.", hint=f"See {folder / 'server.log'}.") from error


def send(server: Server, pixels: Pixels, advance: Advance) -> int:
    """Post every row as a request of its own, from several callers at once; returns how many were answered.

    Raises:
        MlxError: a request was refused.
    """

    def call(rows: Sequence[Any]) -> int:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
        for row in rows:
            body = orjson.dumps({"rows": [dict(zip(PIXELS, row.tolist(), strict=True))]})
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != http.client.OK:
                raise MlxError(f"The server answered {response.status}: {answer[:200]!r}")
            advance(1)
        connection.close()
        return len(rows)

    with ThreadPoolExecutor(_CALLERS) as callers:
        return sum(callers.map(call, [pixels[index::_CALLERS] for index in range(_CALLERS)]))
