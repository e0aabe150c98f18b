"""From settings to what a model runs on, and on what after that."""

from pathlib import Path

from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.inference.device import choose, parse_device
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import Package, open_package
from mlx_platform.inference.session import Session, available_providers, open_session
from mlx_platform.serving.devices.chain import ChainPolicy, DeviceChain
from mlx_platform.serving.devices.memory import memory_budget


def session_memory(package: Package, device: str, settings: ServingSettings, *, versions: int = 1) -> int:
    """Bytes that a session of the package may use on a device, "auto" included; 0 for no limit.

    So many `versions` divide what a process may use.

    Raises:
        UsageError: there is no such device.
        UnavailableError: the package does not fit.
    """
    found = str(choose(device, available_providers()))
    mates = sum(str(parse_device(other)) == found for other in settings.devices) or settings.processes
    return memory_budget(
        found,
        settings.memory_bytes,
        settings.memory_headroom,
        weights=package.size,
        share=max(1, mates),
        versions=versions,
    )


def device_chain(model: Model, settings: ServingSettings, *, versions: int = 1) -> DeviceChain:
    """The chain of devices for a loaded model; see `session_memory`.

    Raises:
        UsageError: one of the devices in the settings is none.
    """
    available = available_providers()
    usable = [text for text in settings.degrade.devices if parse_device(text).providers[0] in available]

    def open_on(path: Path, device: str) -> Session:
        # Long after the start the files may be others than those that were verified then.
        if open_package(model.package.root).digest != model.digest:
            raise IntegrityError(f"The package in {model.package.root} is not the one that is served.")
        memory = session_memory(model.package, device, settings, versions=versions)
        return open_session(path, device=device, threads=model.session.threads, memory=memory)

    policy = ChainPolicy(tuple(str(parse_device(text)) for text in usable), settings.degrade.probe_s)
    return DeviceChain(model, policy, open_on)
