"""What copies of requests cost: CPU besides the candidate's own, and the time of callers.

One server process with an encoder twice, as the stable version and as the candidate. A client asks at a
steady pace, in phases that take turns: without copies, with a copy of every request, and with a candidate
that hangs. The work of a version is the CPU time of its runs, taken on the threads that they happen on.
"""

import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loads import write_loads
from measure import table

_RATE = 20.0  # requests a second
_PHASES = ("alone", "copied", "hanging")


@dataclass(slots=True)
class Phase:
    """What was measured in all phases of a kind."""

    requests: int = 0
    cpu: float = 0.0
    stable: float = 0.0
    candidate: float = 0.0
    copies: int = 0
    seconds: list[float] = field(default_factory=list)
    failed: int = 0


def shadow(quick: bool) -> None:
    """Measure, and print the table."""
    rounds, requests = (2, 60) if quick else (5, 150)
    phases = {name: Phase() for name in _PHASES}
    with tempfile.TemporaryDirectory() as folder:
        bodies = write_loads(Path(folder))["encoder"].protocol()
        command = [sys.executable, __file__, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            try:
                port = int(_tell(server, "port")["port"])
                _measure(server, port, bodies, "alone", Phase(), 20)
                for _ in range(rounds):
                    for name in _PHASES:
                        _measure(server, port, bodies, name, phases[name], requests)
            finally:
                server.terminate()
    _print(phases)


def _measure(
    server: "subprocess.Popen[str]", port: int, bodies: list[bytes], name: str, phase: Phase, requests: int
) -> None:
    before = _tell(server, name)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    began = time.perf_counter()
    for number in range(requests):
        time.sleep(max(0.0, began + number / _RATE - time.perf_counter()))
        asked = time.perf_counter()
        connection.request(
            "POST",
            "/v2/models/encoder/infer",
            bodies[number % len(bodies)],
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        answer.read()
        phase.seconds.append(time.perf_counter() - asked)
        phase.failed += answer.status != 200
    connection.close()
    time.sleep(1.2)  # the last copies
    after = _tell(server, "tell")
    phase.requests += requests
    phase.cpu += after["cpu"] - before["cpu"]
    phase.stable += after["stable"] - before["stable"]
    phase.candidate += after["candidate"] - before["candidate"]
    phase.copies += int(after["copies"] - before["copies"])


def _tell(server: "subprocess.Popen[str]", what: str) -> dict[str, float]:
    assert server.stdin is not None  # noqa: S101 - it is a pipe
    assert server.stdout is not None  # noqa: S101 - likewise
    server.stdin.write(f"{what}\n")
    server.stdin.flush()
    line = server.stdout.readline()
    if not line:
        raise SystemExit("The server has gone.")
    answer: dict[str, float] = json.loads(line)
    return answer


def _print(phases: Mapping[str, Phase]) -> None:
    alone = phases["alone"]
    each = 1000 * alone.cpu / alone.requests
    rows = []
    for name, phase in phases.items():
        whole, stable, own = (
            1000 * part / phase.requests for part in (phase.cpu, phase.stable, phase.candidate)
        )
        ordered = sorted(phase.seconds)
        rows.append(
            (
                name,
                *(f"{part:.2f}" for part in (whole, stable, own, whole - stable - own)),
                f"{100 * (whole - own - each) / each:+.1f} %",
                f"{phase.copies}/{phase.requests}",
                f"{1000 * statistics.median(ordered):.2f}",
                f"{1000 * ordered[int(0.99 * len(ordered))]:.2f}",
                str(phase.failed),
            )
        )
    columns = ("requests", "CPU ms", "stable's runs", "candidate's", "all else", "besides", "copies")
    title = "Copies of every request to a candidate, encoder model, one thread each"
    table(title, rows, (*columns, "P50 ms", "P99 ms", "failed"))


def _serve(folder: Path) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(folder))


async def _main(folder: Path) -> None:
    from mlx_platform.core.serving_settings import ServingSettings
    from mlx_platform.inference.build import build_package
    from mlx_platform.serving.app import App
    from mlx_platform.serving.http_exchange import RequestIds
    from mlx_platform.serving.http_protocol import HttpLimits
    from mlx_platform.serving.listener import Listener, bind
    from mlx_platform.serving.rollout.feedback_desk import FeedbackDesk
    from mlx_platform.serving.rollout.observer import Arms
    from mlx_platform.serving.router import Router

    package = build_package(folder / "encoder.onnx", folder / "package").package
    settings = ServingSettings(intra_op_threads=1, traffic=str(folder / "traffic"))
    stable, runs = await _version(package, settings, 1)
    candidate, own = await _version(package, settings, 2)
    router = Router(stable)
    router.add(candidate, "canary")
    router.observer = arms = Arms(settings)
    desk = FeedbackDesk.of(settings, arms)
    listener = Listener(
        App(router, settings, RequestIds(), desk), bind("127.0.0.1", 0, "--port"), HttpLimits()
    )
    await listener.start()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        _follow(line.strip(), arms, (stable, candidate), own)
        sums = {sample.name: sample.value for sample in arms.samples() if sample.name.endswith("copies_sent")}
        told = {
            "port": listener.address[1],
            "cpu": time.process_time(),
            "stable": runs.cpu,
            "candidate": own.cpu,
            "copies": sum(sums.values()) + own.copies,
        }
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _follow(what: str, arms: Any, pair: Any, own: Any) -> None:
    """Begin a phase."""
    if what not in _PHASES:
        return
    own.copies += sum(sample.value for sample in arms.samples() if sample.name == "mlx_rollout_copies_sent")
    arms.leave()
    own.hangs = what == "hanging"
    if what != "alone":
        arms.follow(_rollout(), pair)


def _rollout() -> Any:
    from mlx_platform.serving.rollout.plan import Plan, Step
    from mlx_platform.serving.rollout.state import Rollout

    now = datetime.now(UTC)
    plan = Plan(steps=(Step("shadow", 100.0, 1, 0.0, 3600.0),), warmup_requests=0, warmup_s=0.0)
    place = ("r", "encoder", "production", 1, 2, "", "", plan, "SHADOW", 0, 1, 0.0, 100.0)
    return Rollout(*place, now, now, now)


async def _version(package: Any, settings: Any, number: int) -> Any:
    """A started version, and the runner that takes the time of its runs."""
    from mlx_platform.inference.model import Model
    from mlx_platform.serving.engine import Engine
    from mlx_platform.serving.metrics import Metrics
    from mlx_platform.serving.runner import ModelRunner
    from mlx_platform.serving.served import Served
    from mlx_platform.traffic.writer import TrafficWriter

    class Timed(ModelRunner):
        cpu = 0.0
        copies = 0.0
        hangs = False

        def run(self, feeds: Any, outputs: tuple[str, ...], timeout: float) -> Any:
            if self.hangs:
                time.sleep(timeout)
            began = time.thread_time()
            try:
                return super().run(feeds, outputs, timeout)
            finally:
                self.cpu += time.thread_time() - began

    model = Model.load(package, name="encoder", version=str(number), device="cpu", threads=1)
    writer = TrafficWriter(
        Path(settings.traffic), model="encoder", version=str(number), queue_bytes=2**26, disk_bytes=2**30
    )
    runner = Timed(model)
    engine = Engine(model, settings, Metrics(), writer, runner=runner)
    await engine.start()
    runner.cpu = 0.0
    return Served(engine, settings), runner


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
