"""What each method can do for a model, before anything is computed."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from mlx_platform.core.text import plural, printable
from mlx_platform.quantize.inspect import TAKES, Inspection
from mlx_platform.quantize.target import cpu_flags, speed_of

BITS: Mapping[str, float] = {"static": 8, "dynamic": 8, "fp16": 16, "int4": 5.125}
"""Bits of a stored weight; those of INT4 come with a scale and a zero point for every 32."""
_SHOWN = 12
_INTEGER = frozenset({"static", "dynamic"})


@dataclass(frozen=True, slots=True)
class Prospect:
    """What to expect of a method.

    Attributes:
        layers: that it takes; for float16, weights.
        share: of all float weights.
        size_ratio: of the weights before and after, without what a file holds besides them.
    """

    method: str
    layers: int
    share: float
    size_ratio: float

    def __str__(self) -> str:
        if not self.layers:
            return f"{self.method}: takes nothing."
        what = plural(self.layers, "weight" if self.method == "fp16" else "layer")
        return (
            f"{self.method}: takes {what} with {100 * self.share:.0f} % of the numbers,"
            f" for about {self.size_ratio:.2f} times the size."
        )


def prospects(inspection: Inspection) -> tuple[Prospect, ...]:
    """What to expect of each method, in their order."""
    found = []
    for method in TAKES:
        share = inspection.share(method)
        found.append(Prospect(method, inspection.taken(method), share, 1 - share * (1 - BITS[method] / 32)))
    return tuple(found)


def describe(inspection: Inspection) -> tuple[tuple[str, str], ...]:
    """What was found in a model, as pairs of a name and a text."""
    return (
        ("opsets", _counted(inspection.domains, " ")),
        ("operators", _counted(inspection.operators, " x ")),
        ("outside the ONNX standard", _counted(inspection.foreign, " x ") or "none"),
        ("types of weights", _counted(inspection.datatypes, " x ") or "none"),
        ("weights in other files", str(inspection.external)),
        ("nodes without a name", str(inspection.unnamed)),
        (
            "If, Loop and Scan",
            f"{inspection.control_flow}, with {plural(inspection.in_subgraphs, 'layer')} inside",
        ),
    )


def _counted(counts: Mapping[str, int], between: str) -> str:
    shown = [f"{printable(name)}{between}{count}" for name, count in list(counts.items())[:_SHOWN]]
    more = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def outlook(inspection: Inspection) -> tuple[str, ...]:
    """The prospects as sentences, with what this machine's processor makes of integers."""
    expected = prospects(inspection)
    speed = any(each.layers for each in expected if each.method in _INTEGER)
    flags = [speed_of(platform.machine(), cpu_flags())] if speed else []
    return (*map(str, expected), *flags)
