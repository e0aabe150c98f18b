"""A server in a process of its own: `serve_process.py PACKAGE NAME TRAFFIC SETTINGS`."""

import dataclasses
import sys
from pathlib import Path

import orjson

from mlx_platform.core.settings import ServingSettings
from mlx_platform.core.tables import read_table
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.serving.server import Addresses, run
from mlx_platform.traffic.writer import TrafficWriter


def main(package: str, name: str, traffic: str, settings: str) -> None:
    chosen = read_table(ServingSettings, orjson.loads(settings), source="the test")
    model = Model.load(open_package(Path(package)), name=name, version="3", device="cpu", threads=1)
    writer = None
    if traffic:
        writer = TrafficWriter(
            Path(traffic), model=name, version="3", queue_bytes=2**26, disk_bytes=2**30, sample=1.0
        )
    run(model, chosen, writer, on_ready=announce)


def announce(addresses: Addresses) -> None:
    sys.stdout.write(orjson.dumps(dataclasses.asdict(addresses)).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
