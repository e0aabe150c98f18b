"""One feature of a baseline: its frozen bins, and how a column is counted on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.drift import bins, values
from mlx_platform.drift.tally import Tally, keep_fresh
from mlx_platform.drift.values import Column, Missing, Numbers

Role = Literal["input", "output"]
Kind = Literal["numeric", "discrete", "constant", "categorical", "empty"]
OUTPUT_PREFIX = "output."
"""Set before an output's name when an input has the same."""


@dataclass(frozen=True, slots=True)
class FeatureProfile:
    """One feature of the baseline.

    Attributes:
        name: of the feature, unique among inputs and outputs.
        role: input or output of the model.
        kind: numeric (counted between quantiles), discrete and constant (value by value, and the gaps),
            categorical, or empty: the baseline held no value, so that only "there is one" can be counted.
        dtype: NumPy's name of the numbers' type, or `text`.
        quantiles: 119 observed values, ascending, repeated where the baseline has ties.
        values: of a discrete or constant feature, ascending: all there are, or the one that makes up nearly
            the whole baseline and leaves no quantile bins.
        categories: keys, the most frequent first.
        scale: of a numeric feature, by which distances are divided: IQR / 1.349, else the standard
            deviation, else 1.
        tally: what the baseline itself holds.
    """

    name: str
    role: Role
    kind: Kind
    dtype: str
    tally: Tally
    quantiles: tuple[float | int, ...] = ()
    values: tuple[float | int, ...] = ()
    categories: tuple[str, ...] = ()
    scale: float = 1.0

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "kind": self.kind,
            "dtype": self.dtype,
            "quantiles": self.quantiles,
            "values": self.values,
            "categories": self.categories,
            "scale": self.scale,
            "tally": self.tally.document(),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        if document["kind"] not in get_args(Kind) or document["role"] not in get_args(Role):
            raise UsageError(
                f"A profile names the kind {document['kind']!r} and the role {document['role']!r}."
            )
        found = cls(
            name=str(document["name"]),
            role=document["role"],
            kind=document["kind"],
            dtype=str(document["dtype"]),
            quantiles=_ascending(document["quantiles"]),
            values=_ascending(document["values"]),
            categories=tuple(str(key) for key in document["categories"]),
            scale=float(document["scale"]),
            tally=Tally.from_document(document["tally"]),
        )
        if len(found.tally.bins) != found.bin_count:
            raise UsageError(f"The profile of {found.name!r} has counts for other bins than its own.")
        return found

    @property
    def column(self) -> str:
        """The name that the feature's column has among its role's; `name` is unique among both roles."""
        return self.name.removeprefix(OUTPUT_PREFIX) if self.role == "output" else self.name

    @property
    def edges(self) -> Array:
        """Inner edges of the fine bins of a numeric feature."""
        return bins.edges(np.asarray(self.quantiles), self.highest, bins.FINE_BINS)

    @property
    def highest(self) -> float | int:
        """The largest finite value of the baseline, for features that have one."""
        return self.tally.maximum if self.tally.maximum is not None else np.inf

    @property
    def bin_count(self) -> int:
        match self.kind:
            case "numeric":
                return len(self.edges) + 1
            case "discrete" | "constant":
                return 2 * len(self.values) + 1
            case "categorical":
                return len(self.categories)
            case "empty":
                return 1


def tally_column(feature: FeatureProfile, column: Column) -> Tally:
    """Count a column on the bins of a feature; what does not fit the feature's type is counted as invalid.

    Args:
        feature: of the baseline.
        column: one value in each row [rows], of any type.
    """
    if not values.is_scalar(column):
        return Tally(bins=np.zeros(feature.bin_count, np.int64), missing=Missing(invalid=len(column)))
    if feature.kind == "categorical":
        return _tally_categories(feature, column)
    if feature.kind == "empty":
        return _tally_presence(column)
    return tally_numbers(feature, values.numbers(column))


def tally_numbers(feature: FeatureProfile, found: Numbers) -> Tally:
    """Count numbers on the bins of a numeric, discrete or constant feature."""
    if feature.dtype in {"float16", "float32"} and found.ordered.dtype != np.dtype(feature.dtype):
        # The baseline was rounded: the same value has to be rounded here to meet its edge.
        with np.errstate(over="ignore"):
            found = replace(found, ordered=found.ordered.astype(feature.dtype))
    ordered, finite = found.ordered, found.finite
    if feature.kind == "numeric":
        counts = bins.count_intervals(ordered, feature.edges)
    else:
        counts = bins.count_values(ordered, np.asarray(feature.values))
    ends = bins.common_type(np.asarray([feature.tally.minimum, feature.tally.maximum]), ordered)
    return Tally(
        bins=counts,
        missing=found.missing,
        posinf=found.posinf,
        neginf=found.neginf,
        below=int(np.searchsorted(ordered, ends[0], side="left")),
        above=len(ordered) - int(np.searchsorted(ordered, ends[1], side="right")),
        minimum=finite[0].item() if len(finite) else None,
        maximum=finite[-1].item() if len(finite) else None,
    )


def _tally_categories(feature: FeatureProfile, column: Column) -> Tally:
    found = values.categories(column)
    known = dict.fromkeys(feature.categories, 0)
    fresh: dict[str, int] = {}
    for key, count in found.counts.items():
        (known if key in known else fresh)[key] = count
    if feature.tally.other:
        # The baseline had more categories than it names: which of these are new cannot be known.
        counts = np.fromiter(known.values(), np.int64, len(known))
        return Tally(bins=counts, missing=found.missing, other=sum(fresh.values()))
    kept, dropped = keep_fresh(fresh)
    counts = np.fromiter(known.values(), np.int64, len(known))
    return Tally(bins=counts, missing=found.missing, other=dropped, fresh=kept)


def _tally_presence(column: Column) -> Tally:
    if values.holds_numbers(column):
        found = values.numbers(column)
        return Tally(bins=np.asarray([len(found.ordered)], np.int64), missing=found.missing)
    counted = values.categories(column)
    return Tally(bins=np.asarray([sum(counted.counts.values())], np.int64), missing=counted.missing)


def _ascending(numbers: Sequence[Any]) -> tuple[float | int, ...]:
    found = tuple(numbers)
    if any(type(number) not in {int, float} for number in found) or list(found) != sorted(found):
        raise UsageError("The edges of a profile are numbers in ascending order.")
    return found
