"""How far two answers are apart: of numbers one by one, and of rows as a whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array

_BINS_PER_OCTAVE = 8  # a quantile is off by at most half a bin, 4.4 %
_MOST_TOKENS = 2000  # of a sequence; an edit distance takes the product of two lengths
_SIMILARITIES = ("cosine", "overlap", "prefix")


@dataclass(slots=True)
class Differences:
    """Of pairs of finite numbers, a as it was logged and b computed anew; mergeable, of constant size.

    Attributes:
        pairs: how many.
        largest: of |a - b|.
        largest_relative: of |a - b| / max(|a|, |b|).
        required_absolute: the smallest absolute tolerance with which all agree, the relative one as it is.
        required_relative: the smallest relative tolerance, with the absolute one as it is.
        bias: the sum of b - a.
        smape: the sum of 2|a - b| / (|a| + |b|), which is 0 for two zeros.
        bins: counts of |a - b| that is not 0, by the eighths of octaves above 1 in which it lies.
    """

    pairs: int = 0
    largest: float = 0.0
    largest_relative: float = 0.0
    required_absolute: float = 0.0
    required_relative: float = 0.0
    bias: float = 0.0
    smape: float = 0.0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, other: "Differences") -> None:
        self.pairs += other.pairs
        if not other.bins:
            return  # all of them are equal
        self.largest = max(self.largest, other.largest)
        self.largest_relative = max(self.largest_relative, other.largest_relative)
        self.required_absolute = max(self.required_absolute, other.required_absolute)
        self.required_relative = max(self.required_relative, other.required_relative)
        self.bias += other.bias
        self.smape += other.smape
        for number, count in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + count

    def quantile(self, share: float) -> float:
        """That of |a - b|, within 4.4 %; nan without pairs."""
        if not self.pairs:
            return math.nan
        rank = max(1, math.ceil(share * self.pairs))
        seen = self.pairs - sum(self.bins.values())  # those that are equal
        if rank <= seen:
            return 0.0
        for number in sorted(self.bins):
            seen += self.bins[number]
            if rank <= seen:
                return min(self.largest, math.exp2((number + 0.5) / _BINS_PER_OCTAVE))
        return self.largest

    def document(self) -> dict[str, Any]:
        """The numbers, JSON-ready."""
        if not self.pairs:
            return {}
        return {
            "largest": self.largest,
            "largest_relative": self.largest_relative,
            "median": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "bias": self.bias / self.pairs,
            "smape": self.smape / self.pairs,
            "required_absolute": self.required_absolute,
            "required_relative": self.required_relative,
        }


def equal_pairs(array: Array) -> Differences:
    """Of an array and itself."""
    return Differences(pairs=int(np.count_nonzero(np.isfinite(array))) if array.dtype.kind == "f" else 0)


def differences_of(logged: Array, replayed: Array, *, relative: float, absolute: float) -> Differences:
    """Of two arrays of floats of one shape, under a tolerance of relative * max(|a|, |b|) + absolute."""
    a, b = logged.astype(np.float64), replayed.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    if not a.size:
        return Differences()
    with np.errstate(over="ignore"):
        signed = b - a
        apart = np.abs(signed)
        scale = np.maximum(np.abs(a), np.abs(b))
        beyond = apart - relative * scale
        total = np.abs(a) + np.abs(b)
    excess = np.maximum(apart - absolute, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(scale > 0, apart / scale, 0.0)
        needed = np.where(excess > 0, excess / scale, 0.0)
        symmetric = np.where(total > 0, 2 * apart / total, 0.0)
    differing = apart[apart > 0]
    bins = np.floor(np.log2(differing) * _BINS_PER_OCTAVE).astype(np.int64) if differing.size else differing
    values, counts = np.unique(bins, return_counts=True)
    return Differences(
        pairs=int(a.size),
        largest=float(apart.max()),
        largest_relative=float(shares.max()),
        required_absolute=max(0.0, float(beyond.max())),
        required_relative=float(needed.max()),
        bias=float(signed.sum()),
        smape=float(symmetric.sum()),
        bins=dict(zip(values.tolist(), counts.tolist(), strict=True)),
    )


@dataclass(slots=True)
class RowMeasure:
    """One number of each row that differs; `worst` is the least similar or the most distant of them."""

    rows: int
    total: float
    worst: float

    def add(self, other: "RowMeasure", name: str) -> None:
        self.rows += other.rows
        self.total += other.total
        self.worst = (min if name in _SIMILARITIES else max)(self.worst, other.worst)

    def document(self) -> dict[str, Any]:
        return {"rows": self.rows, "mean": self.total / self.rows, "worst": self.worst}


def row_measures(name: str, logged: Array, replayed: Array) -> dict[str, RowMeasure]:
    """How far the differing rows of an output are apart, in the terms of what it holds.

    Args:
        name: of the output. Of `probabilities` it is the total variation, half the sum of |p - q|; of
            `top_labels` the overlap, the share of labels that both name; of other rows of floats the cosine
            and by what share their norms differ; of whole numbers in rows and of text the edit distance
            between tokens (Levenshtein 1966) over the longer length, and the share before the first that
            differs.
        logged: as it was served, [rows, ...]; of text [rows].
        replayed: computed anew; the lengths of rows may differ.

    Returns:
        by name of the measure; {} where none applies or no row differs.
    """
    if not logged.ndim or len(logged) != len(replayed) or logged.ndim != replayed.ndim:
        return {}
    found: dict[str, list[float]] = {}
    for one, other in _differing(logged, replayed):
        for measure, value in _measured(name, one, other):
            if math.isfinite(value):
                found.setdefault(measure, []).append(value)
    return {
        measure: RowMeasure(
            len(values), math.fsum(values), min(values) if measure in _SIMILARITIES else max(values)
        )
        for measure, values in found.items()
    }


def _differing(logged: Array, replayed: Array) -> Iterator[tuple[Any, Any]]:
    for one, other in zip(logged, replayed, strict=True):
        same = np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
        if not same:
            yield one, other


def _measured(name: str, one: Any, other: Any) -> Iterator[tuple[str, float]]:
    if isinstance(one, str) and isinstance(other, str):
        yield from _of_tokens(one.split(), other.split())
    elif not isinstance(one, np.ndarray) or one.ndim != 1:
        return
    elif one.dtype.kind in "OUS":
        if one.size:
            yield "overlap", len(set(one.tolist()) & set(other.tolist())) / one.size
    elif one.dtype.kind in "iu":
        yield from _of_tokens(one.tolist(), other.tolist())
    elif one.dtype.kind == "f" and one.shape == other.shape and one.size > 1:
        yield from _of_vectors(name, one.astype(np.float64), other.astype(np.float64))


def _of_vectors(name: str, one: Array, other: Array) -> Iterator[tuple[str, float]]:
    if "probabilities" in name:
        yield "total_variation", float(np.abs(one - other).sum() / 2)
        return
    with np.errstate(all="ignore"):
        norms = float(np.linalg.norm(one)), float(np.linalg.norm(other))
        if all(norms):
            yield "cosine", float(one @ other) / (norms[0] * norms[1])
            yield "norm", abs(norms[0] - norms[1]) / max(norms)


def _of_tokens(one: list[Any], other: list[Any]) -> Iterator[tuple[str, float]]:
    longer = max(len(one), len(other))
    if not longer or longer > _MOST_TOKENS:
        return
    same = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    yield "prefix", (min(len(one), len(other)) if same is None else same) / longer
    yield "edit_distance", edit_distance(one, other) / longer


def edit_distance(one: list[Any], other: list[Any]) -> int:
    """The fewest tokens to insert, delete or replace that make one list the other (Wagner, Fischer 1974)."""
    before = list(range(len(other) + 1))
    for number, token in enumerate(one, start=1):
        line = [number]
        for place, wanted in enumerate(other, start=1):
            line.append(min(before[place] + 1, line[-1] + 1, before[place - 1] + (token != wanted)))
        before = line
    return before[-1]
