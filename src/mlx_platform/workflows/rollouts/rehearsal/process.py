"""A server in a process of its own, pinned to one version, as somebody starts it in an incident."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from mlx_platform.core.errors import MlxError
from mlx_platform.core.settings import Settings
from mlx_platform.core.text import printable

_STOP_SECONDS = 30


@contextmanager
def pinned_server(settings: Settings, ref: str) -> Iterator[str]:
    """The address of a server that has just become ready; it is drained and ended on the way out.

    Raises:
        MlxError: it did not become ready; says what it said last.
    """
    command = [sys.executable, "-m", "mlx_platform.cli", "serve", ref, "--json", "--registry"]
    command += [_absolute(settings), "--port", "0", "--admin-port", "0", "--grpc-port", "-1"]
    command += ["--config", str(settings.source.resolve())] if settings.source else []
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, cwd=settings.folder, env=os.environ.copy()
        )
        try:
            yield _announced(process, log, ref)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _absolute(settings: Settings) -> str:
    """The registry's URI as it is understood from any folder."""
    uri = settings.registry.uri
    scheme, _, rest = uri.partition(":///")
    if scheme.startswith("sqlite") and rest and not Path(rest).is_absolute():
        return f"{scheme}:///{settings.path(rest)}"
    return uri


def _announced(process: "subprocess.Popen[bytes]", log: Any, ref: str) -> str:
    lines: list[bytes] = []
    for line in process.stdout or ():
        lines.append(line)
        if line.rstrip() == b"}":
            break
    try:
        return str(orjson.loads(b"".join(lines))["data"]["url"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        process.wait(_STOP_SECONDS)
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
        last = printable(said[-1], 300) if said else f"exit code {process.returncode}"
        raise MlxError(f"A server pinned to {ref} did not become ready: {last}") from error
