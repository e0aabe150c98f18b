"""Whether two answers to one request are the same, element by element, and if not, why."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.tensors import Array, Columns, datatype_of

Mask = npt.NDArray[np.bool_]
LABEL_COLUMNS = ("label", "label_index")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers agree when |a - b| <= absolute + relative * max(|a|, |b|)."""

    relative: float
    absolute: float


SAME_RUN: Mapping[str, Tolerance] = {
    "FP64": Tolerance(1e-7, 1e-9),
    "FP32": Tolerance(1.3e-6, 1e-5),
    "FP16": Tolerance(1e-3, 1e-5),
}
"""For the same batch on the same kind of device. Everything that is no float must be equal."""

OTHER_BATCH: Mapping[str, Tolerance] = {**SAME_RUN, "FP32": Tolerance(1e-4, 1e-5)}
"""For another batch size or device: sums are then added up in another order."""

_CELLS = Tolerance(1e-7, 1e-9)  # floats that stand in columns of objects


@dataclass(slots=True)
class ArrayAgreement:
    """How many elements were compared, which of them disagree, and why.

    `largest` and `largest_relative` are the greatest differences between finite numbers.
    """

    elements: int = 0
    disagreeing: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    largest_relative: float = 0.0

    def add(self, other: "ArrayAgreement") -> None:
        self.elements += other.elements
        self.disagreeing += other.disagreeing
        self.reasons.update(other.reasons)
        self.largest = max(self.largest, other.largest)
        self.largest_relative = max(self.largest_relative, other.largest_relative)


@dataclass(frozen=True, slots=True)
class AnswerAgreement:
    """One request: its outputs by name, and its labels. `ties` are labels that changed between equals."""

    outputs: Mapping[str, ArrayAgreement]
    labels: int = 0
    labels_agreeing: int = 0
    ties: int = 0

    @property
    def agrees(self) -> bool:
        return not any(output.disagreeing for output in self.outputs.values())


def compare_answers(
    logged: Columns, replayed: Columns, tolerances: Mapping[str, Tolerance] = SAME_RUN
) -> AnswerAgreement:
    """Compare the logged answer to a request with a replayed one, output by output.

    An output that only one side has disagrees as a whole. A label that changed where both sides find the two
    labels equally likely, within the tolerance, is a tie and agrees.

    Args:
        logged: arrays by name, as they were served.
        replayed: the same, computed anew.
        tolerances: by datatype.
    """
    ties = _ties(logged, replayed, tolerances)
    outputs = {}
    for name in dict.fromkeys((*logged, *replayed)):
        if name not in logged or name not in replayed:
            only = logged.get(name, replayed.get(name))
            reason = "extra_field" if name not in logged else "missing_field"
            outputs[name] = _whole(max(1, np.size(only)) if only is not None else 1, reason)
            continue
        forgiven = ties if name in LABEL_COLUMNS else None
        outputs[name] = compare_arrays(logged[name], replayed[name], tolerances, forgiven=forgiven)
    label = next((outputs[name] for name in LABEL_COLUMNS if name in outputs), None)
    if label is None:
        return AnswerAgreement(outputs)
    count = 0 if ties is None else int(ties.sum())
    return AnswerAgreement(outputs, label.elements, label.elements - label.disagreeing, count)


def compare_arrays(
    logged: Array,
    replayed: Array,
    tolerances: Mapping[str, Tolerance] = SAME_RUN,
    *,
    forgiven: Mask | None = None,
) -> ArrayAgreement:
    """Compare two arrays.

    Elements agree when they are equal (so -0.0 and 0.0 do), both missing, both NaN, the same infinity, or
    floats within the tolerance of their datatype. A different datatype or shape makes all of them disagree.

    Args:
        logged: as it was served.
        replayed: computed anew.
        tolerances: by datatype.
        forgiven: rows whose disagreement does not count.
    """
    elements = max(logged.size, replayed.size)
    if datatype_of(logged) != datatype_of(replayed):
        return _whole(elements, "dtype")
    if logged.shape != replayed.shape:
        return _whole(max(1, elements), "shape")
    if logged.dtype.kind not in "USO" and logged.tobytes() == replayed.tobytes():
        # The usual case, and much cheaper to see than to work out.
        return ArrayAgreement(elements)
    if logged.dtype.kind in "USO":
        reasons = _cell_reasons(logged, replayed)
    elif logged.dtype.kind == "f":
        reasons = _float_reasons(logged, replayed, tolerances[datatype_of(logged)])
    else:
        reasons = {"value": np.asarray(logged != replayed)}
    if forgiven is not None and forgiven.shape == logged.shape[:1]:
        keep = ~forgiven.reshape(-1, *(1,) * (logged.ndim - 1))
        reasons = {reason: mask & keep for reason, mask in reasons.items()}
    counts = Counter({reason: int(mask.sum()) for reason, mask in reasons.items() if mask.any()})
    largest, relative = _largest(logged, replayed) if logged.dtype.kind == "f" else (0.0, 0.0)
    return ArrayAgreement(elements, counts.total(), counts, largest, relative)


def _whole(elements: int, reason: str) -> ArrayAgreement:
    return ArrayAgreement(elements, elements, Counter({reason: elements}))


def _float_reasons(logged: Array, replayed: Array, tolerance: Tolerance) -> dict[str, Mask]:
    a, b = logged.astype(np.float64), replayed.astype(np.float64)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    infinite = np.isinf(a) | np.isinf(b)
    different = (a != b) & ~(nan_a & nan_b)
    finite = np.isfinite(a) & np.isfinite(b)
    return {
        "nan_vs_value": nan_a ^ nan_b,
        "inf": different & infinite & ~nan_a & ~nan_b,
        "value": different & finite & ~_near(a, b, tolerance),
    }


def _near(a: Array, b: Array, tolerance: Tolerance) -> Mask:
    with np.errstate(invalid="ignore", over="ignore"):
        room = tolerance.absolute + tolerance.relative * np.maximum(np.abs(a), np.abs(b))
        near: Mask = np.abs(a - b) <= room
    return near


def _largest(logged: Array, replayed: Array) -> tuple[float, float]:
    a, b = logged.astype(np.float64), replayed.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return 0.0, 0.0
    difference = np.abs(a[finite] - b[finite])
    scale = np.maximum(np.abs(a[finite]), np.abs(b[finite]))
    relative = np.divide(difference, scale, out=np.zeros_like(difference), where=scale > 0)
    return float(difference.max()), float(relative.max())


def _cell_reasons(logged: Array, replayed: Array) -> dict[str, Mask]:
    found = [
        _cell_reason(a, b)
        for a, b in zip(logged.reshape(-1).tolist(), replayed.reshape(-1).tolist(), strict=True)
    ]
    return {
        reason: np.array([one == reason for one in found]).reshape(logged.shape)
        for reason in set(found) - {""}
    }


def _cell_reason(a: Any, b: Any) -> str:
    """Why two cells of object columns differ; empty when they do not."""
    if a is None or b is None:
        return "" if a is b else "null_vs_value"
    if type(a) is not type(b):
        return "dtype"
    if isinstance(a, float):
        reasons = _float_reasons(np.array([a]), np.array([b]), _CELLS)
        return next((reason for reason, mask in reasons.items() if mask[0]), "")
    if isinstance(a, list):
        return "shape" if len(a) != len(b) else next(filter(None, map(_cell_reason, a, b)), "")
    return "" if a == b else "value"


def _ties(logged: Columns, replayed: Columns, tolerances: Mapping[str, Tolerance]) -> Mask | None:
    """Rows whose label changed although both labels are equally likely on both sides; None if unknown."""
    sides = (logged, replayed)
    if any("label_index" not in side or "probabilities" not in side for side in sides):
        return None
    before, now = (side["label_index"] for side in sides)
    if np.array_equal(before, now):
        return None
    shapes = {side["probabilities"].shape for side in sides}
    if before.shape != now.shape or len(shapes) != 1 or before.ndim != 1 or len(next(iter(shapes))) != 2:
        return None
    rows, classes = next(iter(shapes))
    if rows != len(before) or not all(((side >= 0) & (side < classes)).all() for side in (before, now)):
        return None
    tied: Mask = np.asarray(before != now)
    every = np.arange(rows)
    for side in sides:
        probabilities = side["probabilities"]
        tolerance = tolerances.get(datatype_of(probabilities), _CELLS)
        tied &= _near(
            probabilities[every, before].astype(np.float64),
            probabilities[every, now].astype(np.float64),
            tolerance,
        )
    return tied
