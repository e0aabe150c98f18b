"""Telling an event to a program: a list of words and no shell, the event's JSON on its standard input.

The program runs in a process group of its own, which dies as a whole when its time is over. What it prints is
read so far as it helps to understand a failure, and the rest is thrown away.
"""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import SinkSettings
from mlx_platform.core.text import printable
from mlx_platform.registry.outbox import ERROR_CAP, Answer, Message

VARIABLE_PREFIX = "MLX_EVENT_"
_OUTPUT_CAP = 4096  # bytes that are kept
_TOLD = (
    "id",
    "kind",
    "time",
    "number",
    "model",
    "alias",
    "from_version",
    "to_version",
    "from_label",
    "to_label",
    "digest",
    "actor",
    "reason",
)
_LOOK = 0.02  # seconds between looks at a program that prints nothing


class CommandHook:
    """A program that is told; a relative path belongs to the settings file's folder, where it also runs.

    Raises:
        UsageError: no program is named.
    """

    def __init__(self, sink: SinkSettings, environment: Mapping[str, str], folder: Path) -> None:
        if not sink.command or not sink.command[0] or any("\0" in word for word in sink.command):
            raise UsageError(
                f"The sink {sink.name!r} names no command.",
                hint='Write command = ["./notify.sh", "argument"].',
            )
        self._command = list(sink.command)
        self._environment = {
            name: value for name, value in environment.items() if not name.startswith(VARIABLE_PREFIX)
        }
        self._folder = folder

    def send(self, message: Message, *, timeout: float, now: datetime) -> Answer:  # noqa: ARG002 - a sender's form
        """Run it once; it was delivered when it ends with 0 in time."""
        deadline = time.monotonic() + timeout
        with tempfile.TemporaryFile() as document:
            document.write(message.body)
            document.seek(0)
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=document,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env=self._environment | variables(message),
                    start_new_session=True,
                )
            except OSError as error:
                return Answer(delivered=False, said=f"it cannot be started: {error.strerror}")
        try:
            with process:
                output, ended = _watch(process, deadline)
                if not ended:
                    _kill(process)
        except BaseException:
            _kill(process)
            raise
        return _answer(process.returncode, output, None if ended else timeout)


def variables(message: Message) -> dict[str, str]:
    """The event for the environment of a program, as printable text; what it does not have is empty."""
    data = message.document["data"]
    found = {name: "" if data.get(name) is None else str(data[name]) for name in _TOLD}
    return {VARIABLE_PREFIX + name.upper(): printable(value) for name, value in found.items()}


def _watch(process: "subprocess.Popen[bytes]", deadline: float) -> tuple[bytes, bool]:
    """Read until the program ends or its time is over: what it printed first, and whether it ended."""
    pipe: IO[bytes] = process.stdout  # type: ignore[assignment] # opened as a pipe
    os.set_blocking(pipe.fileno(), False)
    kept = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            readable = selector.select(0 if ended else min(_LOOK, max(0.0, deadline - time.monotonic())))
            if readable:
                part = pipe.read(65536)
                kept += (part or b"")[: _OUTPUT_CAP - len(kept)]
                if part == b"":
                    selector.unregister(pipe)
            # A child that it left behind may hold the pipe open for ever, and print for ever.
            if ended and (not readable or time.monotonic() >= deadline):
                return kept, True
            if time.monotonic() >= deadline:
                return kept, False
            if not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # The group bears the number of its leader, which is not given out again before the leader is waited for.
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _answer(code: int, output: bytes, timeout: float | None) -> Answer:
    if timeout is None and code == 0:
        return Answer(delivered=True, said="exit code 0")
    said = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
    if timeout is not None:
        said = f"it was still running after {timeout:.3g} s and was killed"
    text = " ".join(output.decode(errors="replace").split())
    return Answer(delivered=False, said=printable(f"{said}: {text}" if text else said, ERROR_CAP))
