"""A server in a process of its own: `serve_process.py PACKAGE NAME TRAFFIC SETTINGS`.

Among the settings may be `device`, and `light`: the package that answers when no device works.
"""

import dataclasses
import os
import sys
from pathlib import Path

import orjson

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tables import read_table
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import open_package
from mlx_platform.serving.access import Access
from mlx_platform.serving.assembly import open_log
from mlx_platform.serving.processes.supervisor import supervise
from mlx_platform.serving.processes.worker import Loaded, Plan
from mlx_platform.serving.server import Addresses, run

sys.path.insert(0, str(Path(__file__).parents[1]))
import simulated_gpu


def main(package: str, name: str, traffic: str, settings: str) -> None:
    simulated_gpu.use(os.environ)
    given = orjson.loads(settings)
    device, light = given.pop("device", "cpu"), given.pop("light", "")
    chosen = dataclasses.replace(read_table(ServingSettings, given, source="the test"), traffic=traffic)
    if chosen.processes:
        plan = Plan(Loaded(package, name, "3"), device, chosen)
        devices = chosen.devices or (device,) * chosen.processes
        access = Access.of(chosen, os.environ)
        supervise(plan, devices, access, on_ready=lambda addresses: announce(Addresses(**addresses)))
        return
    model = Model.load(open_package(Path(package)), name=name, version="3", device=device, threads=1)
    helper = Model.load(open_package(Path(light)), name="light", version="1", device="cpu") if light else None
    run(model, chosen, open_log(chosen, name, "3"), light=helper, on_ready=announce)


def announce(addresses: Addresses) -> None:
    sys.stdout.write(orjson.dumps(dataclasses.asdict(addresses)).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
