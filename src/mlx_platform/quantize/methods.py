"""The ways to make a model smaller, as one table of recipes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Tensors
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.quantize.build import build
from mlx_platform.quantize.calibrate import Range
from mlx_platform.quantize.dynamic import build_dynamic, plan_dynamic
from mlx_platform.quantize.half import build_half, plan_half
from mlx_platform.quantize.inspect import TAKES, Inspection, refuse_unsuitable
from mlx_platform.quantize.int4 import build_int4, plan_int4
from mlx_platform.quantize.plan import Built, Plan, plan
from mlx_platform.quantize.prepare import Prepared
from mlx_platform.quantize.storage import files_of, load
from mlx_platform.quantize.target import Target, caution, this_machine
from mlx_platform.quantize.tidy import constants_of
from mlx_platform.quantize.verify import LayerError, Verified, layer_errors, verify

_OVERFLOW = 0.02  # a relative error above what rounding alone explains


@dataclass(frozen=True, slots=True)
class Recipe:
    """One method.

    Attributes:
        title: for people.
        calibrated: whether it needs the ranges of activations.
        integer: whether products run in integers whose sums a processor may overflow.
        plan: which nodes of a prepared `onnx.ModelProto` it would take.
        build: writes the model; see `make` for the arguments.
    """

    title: str
    calibrated: bool
    integer: bool
    plan: Callable[[Any], Plan]
    build: Callable[[Prepared, Path, Plan, Target, Mapping[str, Range]], Built]


def _static(
    prepared: Prepared, out: Path, chosen: Plan, target: Target, ranges: Mapping[str, Range]
) -> Built:
    return build(prepared.path, out, chosen, ranges, target, model_name=prepared.name)


def _dynamic(
    prepared: Prepared, out: Path, chosen: Plan, target: Target, _ranges: Mapping[str, Range]
) -> Built:
    return build_dynamic(prepared.path, out, chosen, target)


def _half(
    prepared: Prepared, out: Path, chosen: Plan, _target: Target, _ranges: Mapping[str, Range]
) -> Built:
    return build_half(prepared.path, out, chosen)


def _int4(
    prepared: Prepared, out: Path, chosen: Plan, _target: Target, _ranges: Mapping[str, Range]
) -> Built:
    return build_int4(prepared.path, out, chosen)


METHODS: Mapping[str, Recipe] = {
    "static": Recipe("static INT8", calibrated=True, integer=True, plan=plan, build=_static),
    "dynamic": Recipe("dynamic INT8", calibrated=False, integer=True, plan=plan_dynamic, build=_dynamic),
    "fp16": Recipe("float16 weights", calibrated=False, integer=False, plan=plan_half, build=_half),
    "int4": Recipe("INT4 weights", calibrated=False, integer=False, plan=plan_int4, build=_int4),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A smaller model and how it came about.

    Attributes:
        path: the ONNX file; large ones have a file of weights beside it, see `files`.
        method: a key of `METHODS`.
        ranges: of the activations, where the method needs them.
        layer_errors: the worst first.
    """

    path: Path
    method: str
    target: Target
    prepared: Prepared
    ranges: Mapping[str, Range]
    built: Built
    verified: Verified
    layer_errors: tuple[LayerError, ...]

    @property
    def left_out(self) -> Mapping[str, str]:
        """Weighted nodes that stayed float, with the reason."""
        return {**_not_for(self.method, self.prepared.inspection), **self.built.left_out}

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about it: how the model was changed before, and what the result is not good for."""
        found = [*self.prepared.notes, *self.built.notes]
        if METHODS[self.method].integer:
            found.append(caution(self.target, this_machine()))
        if self.verified.overflow > _OVERFLOW:
            found.append(
                f"Sums of 8-bit products overflow on this processor: outputs are"
                f" {100 * self.verified.overflow:.0f} % off what the same file gives elsewhere."
            )
        return tuple(filter(None, found))

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that belongs to the model, `path` first."""
        return files_of(self.path)


def _not_for(method: str, inspection: Inspection) -> dict[str, str]:
    if method == "fp16":
        return {}
    others = {
        layer.node: "Convolutions have no fast kernel for it."
        for layer in inspection.layers
        if layer.operator not in TAKES[method]
    }
    return {**inspection.left_out, **others}


def recipe_of(method: str, also: Sequence[str] = ()) -> Recipe:
    """The recipe of that name.

    Raises:
        UsageError: there is none; tells those there are, and what a caller would `also` have taken.
    """
    if method not in METHODS:
        known = (*METHODS, *also)
        raise UsageError(
            f"There is no method {printable(method, 80)!r}: it is one of {', '.join(known)}.",
            hint=did_you_mean(method, known),
        )
    return METHODS[method]


def plan_of(method: str, prepared: Prepared) -> Plan:
    """Which layers a method would take, and for a calibrated one the tensors to watch.

    Raises:
        UsageError: there is no such method.
        UndecidedError: it has nothing to take in this model.
    """
    recipe = recipe_of(method)
    chosen = recipe.plan(load(prepared.path, weights=False))
    if not chosen.layers:
        refuse_unsuitable(prepared.inspection, prepared.name, [method])
        raise UndecidedError(f"{printable(prepared.name)} has no layer for {recipe.title}.")
    return chosen


def _not_finite(prepared: Prepared, chosen: Plan) -> dict[str, str]:
    """The layers whose weights no scale fits."""
    from onnx import numpy_helper

    tensors = constants_of(load(prepared.path).graph)
    weights = {layer.weight for layer in chosen.layers} & tensors.keys()
    broken = {name for name in weights if not np.isfinite(numpy_helper.to_array(tensors[name])).all()}
    return {
        layer.node: "Its weight holds NaN or infinity." for layer in chosen.layers if layer.weight in broken
    }


def make(
    method: str,
    prepared: Prepared,
    out: Path,
    probe: Sequence[Tensors],
    target: Target,
    *,
    ranges: Mapping[str, Range] | None = None,
    without: Collection[str] = (),
    threads: int = 1,
) -> Made:
    """Write one candidate and verify it.

    The same arguments give the same bytes.

    Args:
        method: a key of `METHODS`.
        prepared: from `prepare`; it may serve any number of candidates.
        out: the file to write, in a private folder that exists.
        probe: a few batches of inputs on which the result is run.
        target: the processor family it is for.
        ranges: of the tensors of `plan_of(method, prepared)`, for a method that is calibrated.
        without: names of nodes that are to stay float.
        threads: within one operator.

    Raises:
        UsageError: there is no such method, or no such node.
        UndecidedError: the method does not apply to the model, or what came out cannot be trusted.
    """
    recipe = recipe_of(method)
    whole = plan_of(method, prepared)
    for node in without:
        if node not in whole.nodes:
            raise UsageError(
                f"{printable(prepared.name)} has no layer {printable(node)!r} that {recipe.title} takes.",
                hint=did_you_mean(node, whole.nodes),
            )
    broken = _not_finite(prepared, whole)
    chosen = whole.without({*without, *broken})
    if not chosen.layers:
        raise UndecidedError(f"Every layer of {printable(prepared.name)} is to stay float.")
    found = ranges or {}
    built = recipe.build(prepared, out, chosen, target, found)
    built = replace(built, left_out={**broken, **built.left_out})
    verified = verify(prepared.original, out, probe, out.parent, threads=threads)
    errors = layer_errors(prepared.path, out, built.plan, probe, out.parent, threads=threads)
    return Made(out, method, target, prepared, found, built, verified, errors)
