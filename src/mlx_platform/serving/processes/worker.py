"""A worker: `python -m mlx_platform.serving.processes.worker CHANNEL RECORDER`, a plan on standard input."""

import json
import signal
import socket
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import MlxError
from mlx_platform.core.logs import log_lines
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tables import read_table
from mlx_platform.serving.following.followed import Followed


@dataclass(frozen=True, slots=True)
class Loaded:
    """A package folder, and the name and version that it goes by."""

    root: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker does: everything is resolved already, so that all workers serve the same bytes."""

    package: Loaded
    device: str
    settings: ServingSettings
    light: Loaded | None = None
    embedder: Loaded | None = None
    followed: Followed | None = None

    def written(self, device: str, settings: ServingSettings) -> bytes:
        """The plan for the worker on one device, as its standard input holds it."""
        document = asdict(replace(self, device=device, settings=settings, followed=None))
        if self.followed is not None:
            everything = replace(self.followed.settings, serving=settings)
            document["followed"] = replace(self.followed, settings=everything).document()
        return json.dumps(document).encode()

    @classmethod
    def read(cls, text: bytes) -> "Plan":
        document = json.loads(text)
        loaded = {key: document[key] and Loaded(**document[key]) for key in ("package", "light", "embedder")}
        settings = read_table(ServingSettings, document["settings"], source="the supervisor")
        followed = document["followed"] and Followed.from_document(document["followed"])
        return cls(device=document["device"], settings=settings, followed=followed, **loaded)


def main(channel_descriptor: str, recorder_descriptor: str) -> int:
    """Serve what the supervisor sends, and tell it how that went; the exit code of the command line."""
    from mlx_platform.serving.feeding import channel
    from mlx_platform.serving.feeding.feed import Feed
    from mlx_platform.serving.feeding.flight_recorder import FlightRecorder

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end = socket.socket(fileno=int(channel_descriptor))
    plan = Plan.read(sys.stdin.buffer.read())
    feed = Feed(end, FlightRecorder(int(recorder_descriptor), plan.settings.max_connections))
    try:
        with log_lines(plan.settings.log_format):
            counts = _serve(plan, feed)
    except MlxError as error:
        document = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
        channel.send_document(end, channel.ERROR, document)
        return error.exit_code
    channel.send_document(end, channel.FINISHED, counts)
    return 0


def _serve(plan: Plan, feed: Any) -> dict[str, Any]:
    from mlx_platform.serving.assembly import open_log
    from mlx_platform.serving.feeding import channel
    from mlx_platform.serving.following.desk import VERSIONS, Desk
    from mlx_platform.serving.server import Addresses, run

    def announce(addresses: Addresses) -> None:
        feed.tell_document(channel.READY, asdict(addresses))

    settings = plan.settings
    desk = Desk(plan.followed, plan.device) if plan.followed is not None else None
    recalled = desk.recall() if desk is not None else None  # a worker that is started anew
    package = plan.package
    if recalled is not None:
        package = Loaded(str(recalled[1].root), package.name, recalled[0])
    model = _load(package, plan.device, settings, versions=VERSIONS if desk is not None else 1)
    outcome = run(
        model,
        settings,
        open_log(settings, package.name, package.version),
        embedder=_load(plan.embedder, plan.device, settings) if plan.embedder else None,
        light=_load(plan.light, "cpu", settings) if plan.light else None,
        feed=feed,
        desk=desk,
        on_ready=announce,
    )
    return asdict(outcome)


def _load(loaded: Loaded, device: str, settings: ServingSettings, *, versions: int = 0) -> Any:
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import open_package
    from mlx_platform.serving.devices.plan import session_memory

    package = open_package(Path(loaded.root))
    memory = session_memory(package, device, settings, versions=versions) if versions else 0
    return Model.load(
        package,
        name=loaded.name,
        version=loaded.version,
        device=device,
        threads=settings.intra_op_threads,
        memory=memory,
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
