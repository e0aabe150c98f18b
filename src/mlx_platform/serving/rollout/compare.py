"""Whether a candidate says the same as the stable version, output by output, and where the two part most.

Where an answer has labels they decide whether the two agree: a version that was trained anew is expected to
be more or less sure of them. Otherwise every output does, numbers within a tolerance. What does not decide is
compared and told all the same.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, Columns
from mlx_platform.evaluation.agreement import AnswerAgreement, Tolerance, compare_answers
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.serving.json_tensors import all_finite
from mlx_platform.serving.masking import MASKED, is_personal, mask_cell

_LABELS = ("label", "labels", "top_labels")
_STRUCTURE = frozenset(("missing_field", "extra_field", "dtype", "shape"))
_RANKED = frozenset(("labels", "top_k"))
_SCORES = frozenset(("softmax", "sigmoid"))
_BEST = "best"
KEPT = 20
"""The worst differences that are kept."""
_SHOWN_CELLS = 8
_SHOWN_CHARACTERS = 80


def is_sound(outputs: Columns) -> bool:
    """Whether an answer holds neither NaN nor infinity."""
    return all(array.dtype.kind != "f" or all_finite(array) for array in outputs.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """One request, answered twice.

    Attributes:
        agrees: whether everything does that decides.
        differing: the outputs that differ, whether or not they decide.
        row: the first row in which one of those differs, where that is known.
        severity: orders the requests that do not agree: how sure the stable version was of the label that
            changed, or how far the numbers are from each other.
    """

    agrees: bool
    differing: tuple[str, ...]
    row: int | None = None
    severity: float = 0.0


class Comparer:
    """Compares the answers of two versions with one signature.

    Args:
        spec: of the stable version.
        relative: numbers agree within this share of the larger one,
        absolute: or within so much.
    """

    def __init__(self, spec: ModelSpec, *, relative: float, absolute: float) -> None:
        self._tolerances = dict.fromkeys(("FP64", "FP32", "FP16"), Tolerance(relative, absolute))
        self._scores = _scores_of(spec)

    def compare(self, stable: Columns, candidate: Columns) -> Comparison:
        """Compare the answers to one request: answer columns both times, or tensors both times."""
        ours, theirs = self._with_best(stable), self._with_best(candidate)
        found = compare_answers(ours, theirs, self._tolerances)
        deciding = next((name for name in (*_LABELS, _BEST) if name in ours), None)
        differing = tuple(name for name, output in found.outputs.items() if output.disagreeing)
        agrees = not any(
            deciding in {None, name} or _STRUCTURE & found.outputs[name].reasons.keys() for name in differing
        )
        shown = tuple(name for name in differing if name != _BEST)
        if agrees:
            return Comparison(agrees=True, differing=shown)
        row = _first_row(ours, theirs, differing if deciding is None else (deciding,))
        return Comparison(False, shown, row, _severity(ours, found, row))

    def _with_best(self, outputs: Columns) -> Columns:
        """The outputs, with the best class of each row where they hold scores of classes and no labels."""
        scores = outputs.get(self._scores) if self._scores else None
        if (
            scores is None
            or scores.ndim < 2
            or not scores.shape[-1]
            or any(name in outputs for name in _LABELS)
        ):
            return outputs
        return {**outputs, _BEST: scores.argmax(axis=-1)}


def _scores_of(spec: ModelSpec) -> str:
    """The network's output whose largest number makes the label; empty where none does."""
    made: dict[str, str] = {}
    for step in spec.post_steps():
        source = next(iter(step.takes), "")
        if step.kind in _SCORES:
            made |= dict.fromkeys(step.makes, made.get(source, source))
        elif step.kind in _RANKED:
            return made.get(source, source)
    return ""


def _first_row(ours: Columns, theirs: Columns, names: tuple[str, ...]) -> int | None:
    """The first row whose labels differ, or the one whose numbers are farthest from each other."""
    for name in names:
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None or a.shape != b.shape or not a.ndim or not a.size:
            continue
        with np.errstate(invalid="ignore"):
            apart = np.abs(a.astype(np.float64) - b) if a.dtype.kind == "f" else np.asarray(a != b)
        rows = apart.reshape(len(a), -1).max(axis=1)
        if rows.any():
            return int(rows.argmax())
    return None


def _severity(ours: Columns, found: AnswerAgreement, row: int | None) -> float:
    confidence = ours.get("confidence")
    if confidence is not None and row is not None and row < len(confidence):
        return float(confidence[row])
    return max((output.largest for output in found.outputs.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Difference:
    """A request whose answers part, and what both versions said of one row of it; masked already."""

    request_id: str
    outputs: tuple[str, ...]
    row: int
    severity: float
    stable: Mapping[str, Any]
    candidate: Mapping[str, Any]

    def document(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "outputs": list(self.outputs),
            "row": self.row,
            "severity": self.severity,
            "stable": dict(self.stable),
            "candidate": dict(self.candidate),
        }


class Differences:
    """The worst differences that were seen, at most `KEPT`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Difference]] = []
        self._numbers = count()

    def add(self, request_id: str, found: Comparison, stable: Columns, candidate: Columns) -> None:
        """Keep what was found if it is among the worst."""
        if len(self._heap) >= KEPT and found.severity <= self._heap[0][0]:
            return
        row = found.row or 0
        shown = found.differing[:_SHOWN_CELLS]
        difference = Difference(
            request_id,
            found.differing,
            row,
            found.severity,
            _said(stable, shown, row),
            _said(candidate, shown, row),
        )
        entry = (found.severity, -next(self._numbers), difference)
        if len(self._heap) < KEPT:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)

    def worst(self) -> tuple[Difference, ...]:
        """What is kept, the worst first."""
        return tuple(
            difference for *_, difference in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)
        )


def _said(outputs: Columns, names: tuple[str, ...], row: int) -> dict[str, Any]:
    return {name: _excerpt(name, outputs[name], row) for name in names if name in outputs}


def _excerpt(name: str, array: Array, row: int) -> Any:
    """What one row of an output holds, cut short; texts of strangers are masked."""
    if is_personal(name):
        return MASKED
    part = array[row] if array.ndim and row < len(array) else array
    cells = [_cell(cell) for cell in np.asarray(part, dtype=array.dtype).reshape(-1)[:_SHOWN_CELLS].tolist()]
    return cells[0] if np.ndim(part) == 0 and cells else cells


def _cell(cell: Any) -> Any:
    if isinstance(cell, float):
        return cell if np.isfinite(cell) else str(cell)
    return mask_cell(cell[:_SHOWN_CHARACTERS] if isinstance(cell, str) else cell)
