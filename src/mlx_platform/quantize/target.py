"""Which integer types a processor computes fast and without overflow."""

import platform
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable

VNNI_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8"})
_ARM_FLAGS = frozenset({"asimddp", "i8mm"})
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
AUTO = "auto"
TARGETS: Mapping[str, Target] = {target.name: target for target in (AVX2, VNNI, ARM)}


def target_of(machine: str, flags: AbstractSet[str]) -> Target:
    """Choose the types for a machine (as `platform.machine()` names it) with the given CPU flags.

    A machine that is not known gets the types that are right everywhere.
    """
    if machine.lower() in {"aarch64", "arm64"}:
        return ARM
    return VNNI if flags & VNNI_FLAGS else AVX2


def this_machine() -> Target:
    return target_of(platform.machine(), cpu_flags())


def parse_target(name: str) -> Target:
    """The target of that name.

    `auto` takes the family of this machine. On x86 weights then keep to 7 bits even where this processor
    could multiply 8: nobody said that every processor the model will meet can.

    Raises:
        UsageError: there is no such target.
    """
    if name == AUTO:
        return ARM if this_machine() is ARM else AVX2
    if name not in TARGETS:
        raise UsageError(
            f"There is no target {printable(name, 80)!r}: it is one of {', '.join((AUTO, *TARGETS))}.",
            hint=did_you_mean(name, (AUTO, *TARGETS)),
        )
    return TARGETS[name]


def caution(target: Target, machine: Target) -> str:
    """What to know about a target where this machine is of another kind, or an empty text.

    Args:
        target: what a model is built for.
        machine: from `this_machine`.
    """
    if target == machine:
        return ""
    if (target, machine) == (AVX2, VNNI):
        return (
            "Weights keep to 7 bits, which is right on every x86 processor."
            f" This one could use all 8: --target {VNNI.name}, if those that serve the model can too."
        )
    return (
        f"The model is built for {target.name}, and this machine is {machine.name}:"
        f" accuracy and speed measured here are not those of the target."
    )


def speed_of(machine: str, flags: AbstractSet[str]) -> str:
    """What a processor (see `target_of`) makes of 8-bit numbers, as a sentence."""
    found = sorted(flags & VNNI_FLAGS)
    if found:
        return f"This processor sums products of 8-bit numbers in one instruction ({', '.join(found)})."
    if machine.lower() in {"aarch64", "arm64"}:
        found = sorted(flags & _ARM_FLAGS)
        return (
            f"This processor sums products of 8-bit numbers in one instruction ({', '.join(found)})."
            if found
            else "This processor has no instruction for sums of 8-bit products: expect smaller, not faster."
        )
    if "avx2" in flags:
        return (
            "This processor has AVX2 and no VNNI: weights keep to 7 bits, and integer layers are at best"
            " about twice as fast."
        )
    return "This processor is not known to be fast with 8-bit numbers: expect smaller, not faster."


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
