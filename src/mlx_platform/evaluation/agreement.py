"""Whether two answers to one request are the same, element by element, and if not, why."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.tensors import Array, Columns, datatype_of
from mlx_platform.evaluation.differences import (
    Differences,
    RowMeasure,
    differences_of,
    equal_pairs,
    row_measures,
)

Mask = npt.NDArray[np.bool_]
LABEL_COLUMNS = ("label", "label_index")
TOP_LABELS = "top_labels"
_TOP_PROBABILITIES = "top_probabilities"


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

    `differences` are those between finite numbers, `measures` those between rows that are not the same.
    """

    elements: int = 0
    disagreeing: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    differences: Differences = field(default_factory=Differences)
    measures: dict[str, RowMeasure] = field(default_factory=dict)

    def add(self, other: "ArrayAgreement") -> None:
        self.elements += other.elements
        self.disagreeing += other.disagreeing
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.differences.add(other.differences)
        for name, measure in other.measures.items():
            if name in self.measures:
                self.measures[name].add(measure, name)
            else:
                self.measures[name] = replace(measure)

    @property
    def largest(self) -> float:
        """The greatest difference between two finite numbers."""
        return self.differences.largest

    def document(self) -> dict[str, Any]:
        """The numbers, JSON-ready."""
        return {
            "elements": self.elements,
            "disagreeing": self.disagreeing,
            "reasons": dict(self.reasons),
            "differences": self.differences.document(),
            "rows": {name: measure.document() for name, measure in self.measures.items()},
        }


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
    logged: Columns,
    replayed: Columns,
    tolerances: Mapping[str, Tolerance] = SAME_RUN,
    *,
    measured: bool = False,
) -> AnswerAgreement:
    """Compare the logged answer to a request with a replayed one, output by output.

    An output that only one side has disagrees as a whole. A label that changed where both sides find the two
    labels equally likely, within the tolerance, is a tie and agrees; so do two of the best labels that
    changed places.

    Args:
        logged: arrays by name, as they were served.
        replayed: the same, computed anew.
        tolerances: by datatype.
        measured: whether to measure the rows that differ as well; see `row_measures`.
    """
    ties = _ties(logged, replayed, tolerances)
    swapped = _swapped(logged, replayed, tolerances)
    outputs = {}
    for name in dict.fromkeys((*logged, *replayed)):
        if name not in logged or name not in replayed:
            only = logged.get(name, replayed.get(name))
            reason = "extra_field" if name not in logged else "missing_field"
            outputs[name] = _whole(max(1, np.size(only)) if only is not None else 1, reason)
            continue
        forgiven = ties if name in LABEL_COLUMNS else swapped if name == TOP_LABELS else None
        found = compare_arrays(logged[name], replayed[name], tolerances, forgiven=forgiven)
        if measured and (found.disagreeing or found.largest or forgiven is not None):
            found.measures = row_measures(name, logged[name], replayed[name])
        outputs[name] = found
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
        forgiven: rows, or elements, whose disagreement does not count.
    """
    elements = max(logged.size, replayed.size)
    if datatype_of(logged) != datatype_of(replayed):
        return _whole(elements, "dtype")
    if logged.shape != replayed.shape:
        return _whole(max(1, elements), "shape")
    if logged.dtype.kind not in "USO" and logged.tobytes() == replayed.tobytes():
        # The usual case, and much cheaper to see than to work out.
        return ArrayAgreement(elements, differences=equal_pairs(logged))
    if logged.dtype.kind == "O" and _same_texts(logged, replayed):
        return ArrayAgreement(elements)
    differences = Differences()
    if logged.dtype.kind in "USO":
        reasons = _in_order(logged, replayed, _cell_reasons(logged, replayed))
    elif logged.dtype.kind == "f":
        tolerance = tolerances[datatype_of(logged)]
        reasons = _float_reasons(logged, replayed, tolerance)
        differences = differences_of(
            logged, replayed, relative=tolerance.relative, absolute=tolerance.absolute
        )
    else:
        reasons = {"value": np.asarray(logged != replayed)}
    if forgiven is not None and forgiven.shape == logged.shape[: forgiven.ndim]:
        keep = ~forgiven.reshape(*forgiven.shape, *(1,) * (logged.ndim - forgiven.ndim))
        reasons = {reason: mask & keep for reason, mask in reasons.items()}
    counts = {reason: int(mask.sum()) for reason, mask in reasons.items() if mask.any()}
    return ArrayAgreement(elements, sum(counts.values()), counts, differences)


def _same_texts(logged: Array, replayed: Array) -> bool:
    cells = logged.reshape(-1).tolist()
    return all(type(cell) is str for cell in cells) and cells == replayed.reshape(-1).tolist()


def _whole(elements: int, reason: str) -> ArrayAgreement:
    return ArrayAgreement(elements, elements, {reason: elements})


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


def _cell_reasons(logged: Array, replayed: Array) -> dict[str, Mask]:
    found = [
        _cell_reason(a, b)
        for a, b in zip(logged.reshape(-1).tolist(), replayed.reshape(-1).tolist(), strict=True)
    ]
    return {
        reason: np.array([one == reason for one in found]).reshape(logged.shape)
        for reason in set(found) - {""}
    }


def _in_order(logged: Array, replayed: Array, reasons: dict[str, Mask]) -> dict[str, Mask]:
    """The reasons, with "order" for values of a row that only changed places."""
    different = reasons.get("value")
    if different is None or logged.ndim != 2:
        return reasons
    rows = np.array(
        [
            Counter(map(repr, one)) == Counter(map(repr, other))
            for one, other in zip(logged.tolist(), replayed.tolist(), strict=True)
        ]
    )
    return reasons | {"value": different & ~rows[:, None], "order": different & rows[:, None]}


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


def _swapped(logged: Columns, replayed: Columns, tolerances: Mapping[str, Tolerance]) -> Mask | None:
    """Which of the best labels, [rows, k], differ by no more than that equally likely ones changed places."""
    needed = (TOP_LABELS, _TOP_PROBABILITIES)
    if any(name not in side for side in (logged, replayed) for name in needed):
        return None
    before, now = logged[TOP_LABELS], replayed[TOP_LABELS]
    p, q = logged[_TOP_PROBABILITIES], replayed[_TOP_PROBABILITIES]
    if before.ndim != 2 or len({side.shape for side in (before, now, p, q)}) != 1 or not before.size:
        return None
    tolerance = tolerances.get(datatype_of(p), _CELLS)
    p, q = p.astype(np.float64), q.astype(np.float64)
    found = np.zeros(before.shape, bool)
    for row, place in zip(*np.nonzero(before != now), strict=True):
        names = before[row].tolist()
        wanted = now[row, place]
        # One that was not among the best can have been no likelier than the last of them.
        rival = names.index(wanted) if wanted in names else before.shape[1] - 1
        found[row, place] = _near(p[row, place], p[row, rival], tolerance) and _near(
            p[row, place], q[row, place], tolerance
        )
    return found
