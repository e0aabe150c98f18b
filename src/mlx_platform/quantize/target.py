"""Which integer types a processor computes fast and without overflow."""

import platform
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8"})
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Target:
    """The processor family that a quantized model is built for.

    `reduce_range` keeps weights within 7 bits. Without it the 16-bit sums of `VPMADDUBSW`, the 8-bit
    multiply of x86 before VNNI, saturate and results are silently wrong.
    """

    name: str
    activation: str
    weight: str
    reduce_range: bool

    def __str__(self) -> str:
        weight = f"{self.weight}, 7 bits" if self.reduce_range else self.weight
        return f"{self.name} (activations {self.activation}, weights {weight})"


AVX2 = Target("x86-avx2", "uint8", "int8", reduce_range=True)
VNNI = Target("x86-vnni", "uint8", "int8", reduce_range=False)
ARM = Target("arm", "int8", "int8", reduce_range=False)


def target_of(machine: str, flags: AbstractSet[str]) -> Target:
    """Choose the types for a machine (as `platform.machine()` names it) with the given CPU flags.

    A machine that is not known gets the types that are right everywhere.
    """
    if machine.lower() in {"aarch64", "arm64"}:
        return ARM
    return VNNI if flags & VNNI_FLAGS else AVX2


def this_machine() -> Target:
    return target_of(platform.machine(), cpu_flags())


def cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """The flags of the first processor; none where the kernel does not list them."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()
