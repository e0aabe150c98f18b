"""What a device is called, and which execution providers it means, in the order they are asked for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable

CPU_PROVIDER = "CPUExecutionProvider"
_CUDA_PROVIDER = "CUDAExecutionProvider"
_TENSORRT_PROVIDER = "TensorrtExecutionProvider"

# What the first cannot compute goes to the next, as far as its operators go: part of a network, never a run.
_ORDER: dict[str, tuple[str, ...]] = {
    "cpu": (CPU_PROVIDER,),
    "cuda": (_CUDA_PROVIDER, CPU_PROVIDER),
    "tensorrt": (_TENSORRT_PROVIDER, _CUDA_PROVIDER, CPU_PROVIDER),
}
_AUTO = ("cuda", "cpu")  # TensorRT takes minutes to build its engines, so it is taken only by name
_DEVICE = re.compile(r"([a-z]+)(?::(\d{1,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """A kind, "cpu", "cuda" or "tensorrt", and which of the GPUs."""

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.index else self.kind

    @property
    def providers(self) -> tuple[str, ...]:
        return _ORDER[self.kind]

    @property
    def arena(self) -> str:
        """What ONNX Runtime calls the memory of this device."""
        return "cpu:0" if self.kind == "cpu" else f"gpu:{self.index}"


def parse_device(text: str) -> Device:
    """Read `cpu`, `cuda`, `tensorrt`, or a GPU by its number such as `cuda:1`.

    Raises:
        UsageError: anything else.
    """
    match = _DEVICE.fullmatch(text)
    kind = match.group(1) if match else text
    if match is None or kind not in _ORDER:
        hint = did_you_mean(kind.partition(":")[0], (*_ORDER, "auto"))
        raise UsageError(f"There is no device {printable(text, 80)!r}.", hint=hint)
    index = int(match.group(2) or 0)
    if kind == "cpu" and index:
        raise UsageError(f"There is one cpu, not {printable(text, 80)!r}.", hint="Use cpu.")
    return Device(kind, index)


def choose(device: str, available: Sequence[str]) -> Device:
    """The device that is meant, where this ONNX Runtime can use it.

    Args:
        device: see `parse_device`, or "auto" for CUDA where there is CUDA, else the CPU.
        available: the execution providers that ONNX Runtime was built with.

    Raises:
        UsageError: there is no such device, or not in this ONNX Runtime.
    """
    if device == "auto":
        return Device(next(kind for kind in _AUTO if _ORDER[kind][0] in available))
    found = parse_device(device)
    if found.providers[0] not in available:
        names = {"cuda": "CUDA", "tensorrt": "TensorRT"}
        raise UsageError(
            f"The device {found} was asked for, but this ONNX Runtime cannot use {names[found.kind]}.",
            hint="Install onnxruntime-gpu in place of onnxruntime, or use --device cpu.",
        )
    return found


def provider_list(device: Device, available: Sequence[str], memory: int) -> list[Any]:
    """Execution providers with their options, as a session takes them.

    Args:
        device: what to run on.
        available: the providers that ONNX Runtime was built with; others are left out.
        memory: the most bytes of a GPU's arena; 0 sets no limit.
    """
    options = {
        _CUDA_PROVIDER: _cuda_options(device.index, memory),
        _TENSORRT_PROVIDER: {"device_id": str(device.index)},
    }
    return [
        (provider, options[provider]) if provider in options else provider
        for provider in device.providers
        if provider in available
    ]


def _cuda_options(index: int, memory: int) -> dict[str, str]:
    # The arena would double at each growth and never give back; TF32 would round inputs to 10 bits.
    options = {
        "device_id": str(index),
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "cudnn_conv_algo_search": "DEFAULT",
    }
    return options | ({"gpu_mem_limit": str(memory)} if memory else {})
