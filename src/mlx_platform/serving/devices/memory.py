"""How much memory a model may use: what is free where it runs, less some head-room for everybody else."""

import os

from mlx_platform.core.errors import UnavailableError
from mlx_platform.inference.device import parse_device
from mlx_platform.serving import memory

_LEAST = 64 * 1024 * 1024  # below this not even the runtime's own buffers fit
_MIB = 1024 * 1024


def memory_budget(
    device: str, configured: int, headroom: float, *, weights: int, share: int = 1, versions: int = 1
) -> int:
    """Bytes that a session may use; 0 where nobody can say what is free.

    Args:
        device: where it runs; see `inference.device.parse_device`.
        configured: the limit that somebody set, 0 for what is free less the head-room.
        headroom: the share of it that stays free.
        weights: bytes of the network's files. A GPU's budget holds them, that of the CPU is for runs alone.
        share: how many processes divide the device.
        versions: how many versions divide what a process may use.

    Raises:
        UnavailableError: the network does not fit.
    """
    free = free_bytes(device)
    budget = (configured or (0 if free is None else int(free * (1 - headroom)) // share)) // versions
    if not budget:
        return 0
    if weights + _LEAST > budget:
        raise UnavailableError(
            f"The model needs {_mib(weights + _LEAST)} MiB on {device}, and may use {_mib(budget)} MiB.",
            hint="Set [serving] memory_bytes or memory_headroom, free memory, or serve a quantized version.",
        )
    return budget - weights if parse_device(device).kind == "cpu" else budget


def free_bytes(device: str) -> int | None:
    """Bytes that are free on a device, in this container; None where nobody can say."""
    found = parse_device(device)
    return memory.available() if found.kind == "cpu" else _free_on_gpu(found.index)


def _free_on_gpu(index: int) -> int | None:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None  # no driver, or none that answers
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(_handle(pynvml, index)).free)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _handle(nvml: object, index: int) -> object:
    """The GPU that CUDA calls `index`: what is visible to this process is counted anew there."""
    visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    name = visible[index] if index < len(visible) else str(index)
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))  # type: ignore[attr-defined]
    return nvml.nvmlDeviceGetHandleByUUID(name)  # type: ignore[attr-defined]


def _mib(size: int) -> str:
    return f"{size / _MIB:,.0f}"
