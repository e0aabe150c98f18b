"""A registry with a sound version and ill ones, servers that follow it, and people who ask them."""

import http.client
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import candidates
import orjson
from support import clean_environment

from mlx_platform.core.settings import Settings, load_settings
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage
from mlx_platform.serving.rollout.carrying import carry_out, production_in, rollout_in
from mlx_platform.serving.rollout.machine import Request, begin, next_state
from mlx_platform.serving.rollout.plan import Plan
from mlx_platform.serving.rollout.state import Rollout, rollout_of

MODEL = "colours"
VERSIONS: Mapping[str, Mapping[str, Any]] = {
    "stable": {},
    "sound": {"seed": 1},
    "shuffled": {"shift": 1},
    "nan": {"ill": "nan"},
    "raises": {"ill": "raises"},
    "slow": {"ill": "slow"},
    "sickly": {"ill": "nan", "well": 0.97},
}
NUMBERS = {name: number for number, name in enumerate(VERSIONS, 1)}
_PATIENCE = 60.0


def make_template(folder: Path) -> Path:
    """Build the registry that tests copy: `colours/1` to `/7` as in `VERSIONS`, the first in production."""
    folder.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(load_settings(start=folder, environment={}))
    lineage = Lineage(
        dataset_version="2026-01", git_commit="0" * 40, params={}, metrics={}, dataset_fingerprint=""
    )
    for name, options in VERSIONS.items():
        catalog.register(MODEL, candidates.package(folder / "made" / name, **options), lineage)
    catalog.move(MODEL, "production", 1, kind="promote", actor="tester")
    return folder


def wait_until(condition: Callable[[], Any], what: str, *, patience: float = _PATIENCE) -> Any:
    """The first answer of a condition that is true; fails when none comes in time."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"In {patience:g} s not: {what}.")


@dataclass
class FollowingServer:
    """A `mlx serve colours@production --follow` process."""

    process: "subprocess.Popen[bytes]"
    addresses: Mapping[str, Any]
    errors: Path

    @property
    def url(self) -> str:
        return str(self.addresses["url"]).removeprefix("http://")

    @property
    def rollout(self) -> dict[str, Any]:
        """What the server says of its part in a rollout."""
        admin = str(self.addresses["admin_url"]).removeprefix("http://")
        connection = http.client.HTTPConnection(admin, timeout=20)
        connection.request("GET", "/debug/config")
        answer = orjson.loads(connection.getresponse().read())
        connection.close()
        found: dict[str, Any] = answer["rollout"]
        return found

    def post(self, path: str, document: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.url, timeout=20)
        connection.request("POST", path, orjson.dumps(document), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, orjson.loads(body)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@dataclass
class Fleet:
    """A folder with a registry, and the servers that follow it."""

    folder: Path
    servers: list[FollowingServer] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Of a process that works in the folder."""
        return clean_environment(MLX_CACHE_DIR=str(self.folder / "cache"), MLX_SERVING_INTRA_OP_THREADS="1")

    @cached_property
    def settings(self) -> Settings:
        return load_settings(start=self.folder, environment=self.environment)

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.settings)

    @classmethod
    def copied(cls, template: Path, folder: Path) -> "Fleet":
        shutil.copytree(template, folder)
        return cls(folder)

    def roll_out(self, candidate: str, plan: Plan, *, id: str = "r1") -> Rollout:  # noqa: A002
        """Begin a rollout of a version against the one in production."""
        stable = self.catalog.resolve(f"{MODEL}@production")
        version = self.catalog.resolve(f"{MODEL}/{NUMBERS[candidate]}")
        rollout = begin(
            plan,
            id=id,
            model=MODEL,
            stable=stable.number,
            candidate=version.number,
            stable_digest=stable.digest,
            candidate_digest=version.digest,
            now=datetime.now(UTC),
            actor="tester",
        )
        self.catalog.transition(MODEL, rollout.document(), candidate=version, after=None, actor="tester")
        return rollout

    def ask(self, command: Any, reason: str = "") -> None:
        """What `mlx rollout pause`, `resume` or `abort` write."""
        sight = self.catalog.sight(MODEL)
        rollout = rollout_in(sight)
        assert rollout is not None
        decided = next_state(
            rollout,
            now=datetime.now(UTC),
            production=production_in(sight, rollout.channel),
            request=Request(command, "tester", reason),
        )
        assert decided is not None
        carry_out(self.catalog, decided, after=sight.head)

    @property
    def rollout(self) -> Rollout:
        """The last rollout as its events tell it."""
        events = self.catalog.rollouts(MODEL)[-1]
        return rollout_of((event.number, event.evidence["rollout"]) for event in events)

    @property
    def states(self) -> list[str]:
        """The states that the last rollout went through; that somebody took over is none."""
        found: list[str] = []
        for event in self.catalog.rollouts(MODEL)[-1]:
            document = event.evidence["rollout"]
            state = f"{document['state']} {document['step']}"
            if found[-1:] != [state]:
                found.append(state)
        return found

    @property
    def production(self) -> int | None:
        return self.catalog.holders(MODEL).get("production")

    def start(self, *options: str) -> FollowingServer:
        """Start a server, and wait until it is ready."""
        errors = self.folder / f"server-{len(self.servers)}.err"
        command = [sys.executable, "-m", "mlx_platform.cli", "serve", f"{MODEL}@production", "--follow"]
        with errors.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--device", "cpu", "--json", *options],
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.rstrip() == b"}":
                break
        addresses = orjson.loads(b"".join(lines))["data"] if lines else None
        assert addresses, errors.read_text()
        server = FollowingServer(process, addresses, errors)
        self.servers.append(server)
        return server

    def stop(self) -> None:
        for server in self.servers:
            with suppress(ProcessLookupError):
                os.killpg(server.process.pid, signal.SIGKILL)  # with whoever records its evidence
            server.stop()


class Load(threading.Thread):
    """Somebody who asks a server again and again, and remembers what came back.

    `answers` counts statuses by the version that answered, `failed` what went wrong on the way.
    """

    def __init__(self, server: FollowingServer, *, pause: float = 0.001, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failed: list[str] = []
        self.ids: list[tuple[str, str]] = []
        self._server = server
        self._pause = pause
        self._random = random.Random(seed)  # noqa: S311 - test data
        self._ended = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._server.url, timeout=20)
        while not self._ended.wait(self._pause):
            row = {f"x{index}": self._random.random() for index in range(3)} | {"x3": 2 * candidates.SICK}
            try:
                connection.request(
                    "POST", "/predict", orjson.dumps({"rows": [row]}), {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not self._ended.is_set():
                    self.failed.append(repr(error))
                    self._ended.wait(0.05)
                continue
            self.answers[answer.getheader("x-mlx-version", ""), answer.status] += 1
            self.ids.append((answer.getheader("x-request-id", ""), answer.getheader("x-mlx-version", "")))
        connection.close()

    def end(self) -> None:
        self._ended.set()
        self.join(30)

    def of(self, version: int) -> int:
        """How many requests a version answered."""
        return sum(count for (answered_by, _), count in self.answers.items() if answered_by == str(version))

    @property
    def wrong(self) -> dict[tuple[str, int], int]:
        """Answers that were not 200."""
        return {key: count for key, count in self.answers.items() if key[1] != 200}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end()
