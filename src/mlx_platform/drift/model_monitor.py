"""The `statistics.json` of Amazon SageMaker Model Monitor as a baseline.

https://docs.aws.amazon.com/sagemaker/latest/dg/model-monitor-byoc-statistics.html: of each number a KLL
sketch (Karnin, Lang, Liberty, FOCS 2016) whose items of level i stand for 2^i rows, or at least ten buckets
of one width; of each text how often its values occur.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array
from mlx_platform.core.text import printable
from mlx_platform.drift import bins
from mlx_platform.drift.feature import FeatureProfile, tally_numbers
from mlx_platform.drift.profile import Profile, profile_columns
from mlx_platform.drift.tally import Tally
from mlx_platform.drift.values import Categories, Missing, Numbers

MOST_ROWS = 4_000_000
"""Rows that are laid out to profile a feature; of more, each then stands for several."""
_WEIGHTS_OFF = 0.01
_LEVELS = 45
_MOST_COUNTED = 2**45


def is_statistics(document: Any) -> bool:
    """Whether a JSON document is such a file."""
    return (
        isinstance(document, Mapping)
        and isinstance(document.get("features"), list)
        and isinstance(document.get("dataset"), Mapping)
        and "item_count" in document["dataset"]
    )


def is_constraints(document: Any) -> bool:
    """Whether it is the `constraints.json` that lies beside one: rules, but no distribution."""
    return isinstance(document, Mapping) and "monitoring_config" in document and "features" in document


def profile_of_statistics(document: Mapping[str, Any]) -> Profile:
    """The profile of the rows that the statistics describe; every feature counts as an input.

    With the sketch, bins are quantiles as always, exact to the sketch's error (about 0.1 % of the rows).
    Without it they are the file's own buckets. A feature without any distribution is kept as an empty one.

    Raises:
        UsageError: a count or a bound is none.
    """
    try:
        rows = _count(document["dataset"]["item_count"])
        features = tuple(_feature(entry) for entry in document["features"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise UsageError(f"These statistics of Model Monitor cannot be read: {error!r}.") from error
    names = [feature.name for feature in features]
    if not rows or len(set(names)) != len(names):
        raise UsageError("These statistics of Model Monitor describe no rows, or a feature twice.")
    return Profile(rows=rows, features=features)


def _feature(entry: Mapping[str, Any]) -> FeatureProfile:
    name = str(entry["name"])
    if "string_statistics" in entry:
        return _texts(name, entry["string_statistics"])
    if "numerical_statistics" in entry:
        return _numbers(name, entry["numerical_statistics"], whole=entry.get("inferred_type") == "Integral")
    return _one(name, Categories({}, Missing()))


def _one(name: str, column: Array | Categories) -> FeatureProfile:
    return profile_columns(len(column), [(name, column)]).features[0]


def _texts(name: str, statistics: Mapping[str, Any]) -> FeatureProfile:
    common = statistics["common"]
    present, missing = _count(common["num_present"]), Missing(null=_count(common["num_missing"]))
    buckets = _distribution(statistics, "categorical").get("buckets") or []
    counts = {str(bucket["value"]): _count(bucket["count"]) for bucket in buckets}
    feature = _one(name, Categories({value: count for value, count in counts.items() if count}, missing))
    if not counts:
        return replace(feature, tally=replace(feature.tally, bins=np.asarray([present], np.int64)))
    # What the file does not name is known by number only.
    unnamed = max(0, present - sum(counts.values()))
    return replace(feature, tally=replace(feature.tally, other=feature.tally.other + unnamed))


def _numbers(name: str, statistics: Mapping[str, Any], *, whole: bool) -> FeatureProfile:
    common = statistics["common"]
    present, missing = _count(common["num_present"]), Missing(null=_count(common["num_missing"]))
    sketched = _distribution(statistics, "kll")
    if not present:
        return _one(name, Categories({}, missing))
    ends = np.asarray([_finite(statistics["min"]), _finite(statistics["max"])])
    items, weights = _items(sketched.get("sketch") or {})
    if len(items) and abs(float(weights.sum(dtype=np.float64)) - present) <= max(2, _WEIGHTS_OFF * present):
        feature = _from_items(name, items, weights, ends, whole=whole)
    elif buckets := sketched.get("buckets"):
        feature = _from_buckets(name, buckets, ends, _finite(statistics.get("std_dev") or 0.0))
    else:
        feature = _one(name, Categories({}, missing))
        return replace(feature, tally=replace(feature.tally, bins=np.asarray([present], np.int64)))
    return replace(feature, tally=replace(feature.tally, missing=missing))


def _items(sketch: Mapping[str, Any]) -> tuple[Array, Array]:
    """The values that a sketch kept [k], and for how many rows each stands."""
    levels = (sketch.get("data") or [])[:_LEVELS]
    values = [np.asarray(level, dtype=np.float64).reshape(-1) for level in levels]
    weights = [np.full(len(kept), 1 << level, np.int64) for level, kept in enumerate(values)]
    if not values:
        return np.empty(0), np.empty(0, np.int64)
    items, found = np.concatenate(values), np.concatenate(weights)
    usable = np.isfinite(items)
    return items[usable], found[usable]


def _from_items(name: str, items: Array, weights: Array, ends: Array, *, whole: bool) -> FeatureProfile:
    shift = max(0, int(weights.sum() // MOST_ROWS).bit_length())
    column = np.concatenate([np.repeat(items, weights >> shift), ends])  # a sketch may have lost both ends
    if whole:
        column = np.rint(column).astype(np.int64)
    feature = _one(name, column)
    tally = feature.tally
    return replace(feature, tally=replace(tally, bins=tally.bins << shift))


def _from_buckets(name: str, buckets: list[Any], ends: Array, spread: float) -> FeatureProfile:
    """Bins that are the buckets: each holds its lower bound and not its upper one, but for the last."""
    uppers = np.asarray([_finite(bucket["upper_bound"]) for bucket in buckets])
    counts = np.asarray([_count(bucket["count"]) for bucket in buckets], dtype=np.int64)
    if (np.diff(uppers) < 0).any() or not counts.sum():
        raise ValueError(f"the buckets of {printable(name, 80)!r} are out of order or empty")
    marks = np.nextafter(uppers, -np.inf)
    marks[-1] = ends[1]
    share = max(1, int(counts.sum()) // MOST_ROWS)
    column = np.sort(np.repeat(marks, -(-counts // share)))
    feature = FeatureProfile(
        name=name,
        role="input",
        kind="numeric",
        dtype="float64",
        quantiles=tuple(bins.quantiles(column).tolist()),
        scale=spread if spread > 0 else 1.0,
        tally=Tally(bins=np.empty(0, np.int64), minimum=float(ends[0]), maximum=float(ends[1])),
    )
    counted = tally_numbers(feature, Numbers(column, Missing()))
    exact = np.zeros(len(counted.bins), np.int64)
    np.add.at(exact, np.searchsorted(feature.edges, marks, side="left"), counts)
    return replace(
        feature, tally=replace(counted, bins=exact, minimum=float(ends[0]), maximum=float(ends[1]))
    )


def _distribution(statistics: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (statistics.get("distribution") or {}).get(kind) or {}
    return found


def _count(value: Any) -> int:
    count = int(_finite(value))
    if not 0 <= count <= _MOST_COUNTED:
        raise ValueError("a count is negative, or larger than any data")
    return count


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(float(value)):
        raise ValueError("something that ought to be a number is none")
    return float(value)
