"""The baseline's profile: frozen bins for every feature, and the baseline's own counts on them.

It travels with a package as `baseline.json`. Windows are counted on its bins and nothing else, so that counts
of shards, hours and replicas add up to the same integers however the rows were split.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import orjson

from mlx_platform.core.errors import IntegrityError, UndecidedError, UsageError
from mlx_platform.core.tensors import Array, Columns
from mlx_platform.core.text import printable
from mlx_platform.drift import bins, values
from mlx_platform.drift.extract.vocabulary import Vocabulary
from mlx_platform.drift.feature import OUTPUT_PREFIX, FeatureProfile, Kind, Role, tally_numbers
from mlx_platform.drift.features import output_features
from mlx_platform.drift.tally import Tally
from mlx_platform.drift.values import Categories, Column, Missing, Numbers

SCHEMA = "mlx.profile/v1"
WITH_VOCABULARIES = "mlx.profile/v2"
"""The schema of a profile that holds more than the first one knows."""
CATEGORIES_KEPT = 10_000
_NORMAL_IQR = 1.349  # the interquartile range of a normal distribution, in standard deviations


@dataclass(frozen=True, slots=True)
class Profile:
    """All features of a baseline of `rows` rows.

    `positions` maps an input feature to the tensor and the column of it that hold the feature in traffic
    that was logged as tensors; `vocabularies` holds the words of a column of texts.
    """

    rows: int
    features: tuple[FeatureProfile, ...]
    positions: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    baseline_id: str = ""
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.baseline_id:
            object.__setattr__(self, "baseline_id", self._identity())

    def _content(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self.vocabularies:
            # Only then: the ids of profiles without any stay what they were.
            words = {name: vocabulary.document() for name, vocabulary in self.vocabularies.items()}
            more = {"vocabularies": words}
        return more | {
            "schema": WITH_VOCABULARIES if more else SCHEMA,
            "rows": self.rows,
            "features": [feature.document() for feature in self.features],
            "positions": {name: list(place) for name, place in self.positions.items()},
        }

    def _identity(self) -> str:
        content = orjson.dumps(self._content(), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(content).hexdigest()[:16]

    def with_vocabularies(self, vocabularies: Mapping[str, Vocabulary]) -> Self:
        """The same with the words that its texts were watched by, under an id of its own."""
        return replace(self, vocabularies=dict(vocabularies), baseline_id="")

    def of_role(self, role: Role) -> tuple[FeatureProfile, ...]:
        return tuple(feature for feature in self.features if feature.role == role)

    def to_json(self) -> bytes:
        """The canonical bytes: equal profiles give equal bytes."""
        document = self._content() | {"baseline_id": self.baseline_id}
        return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read a profile.

        Raises:
            UsageError: it is no profile, or of a schema this version does not know.
            IntegrityError: its content is not what its id says.
        """
        try:
            document = orjson.loads(content)
            if document["schema"] not in {SCHEMA, WITH_VOCABULARIES}:
                raise UsageError(
                    f"This is a profile of the schema {document['schema']!r}, not {WITH_VOCABULARIES!r}."
                )
            features = tuple(FeatureProfile.from_document(entry) for entry in document["features"])
            positions = {str(name): (str(at[0]), int(at[1])) for name, at in document["positions"].items()}
            vocabularies = {
                str(name): Vocabulary.from_document(words)
                for name, words in document.get("vocabularies", {}).items()
            }
            profile = cls(int(document["rows"]), features, positions, vocabularies=vocabularies)
            stated = document["baseline_id"]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UsageError(f"This is no baseline profile: {error}.") from error
        if profile.baseline_id != stated:
            raise IntegrityError("The baseline profile is not the one its id names.")
        return profile


def build_profile(
    features: Mapping[str, Column],
    outputs: Columns | None = None,
    positions: Mapping[str, tuple[str, int]] | None = None,
) -> Profile:
    """Profile a baseline.

    A column that cannot be profiled, for it has more than one dimension or no value that counts, never stops
    the others: it is kept as an empty feature.

    Args:
        features: input features by name, each [rows].
        outputs: the model's answers to the same rows, [rows] or [rows, k]; see `features.output_features`.
        positions: where a feature is found in logged tensors: tensor name and column.

    Raises:
        UndecidedError: there are no rows.
        UsageError: columns differ in their number of rows.
    """
    answers = output_features(outputs or {})
    named: dict[tuple[Role, str], Column] = {("input", name): column for name, column in features.items()}
    rows = shared_rows(named | {("output", name): column for name, column in answers.items()})
    if rows == 0:
        raise UndecidedError("A baseline needs rows.")
    return profile_columns(rows, features.items(), answers, positions)


def profile_columns(
    rows: int,
    features: Iterable[tuple[str, Column]],
    outputs: Mapping[str, Column] | None = None,
    positions: Mapping[str, tuple[str, int]] | None = None,
) -> Profile:
    """Profile columns one after another, so that no two input features need to be in memory at once.

    Args:
        rows: that every column has, at least one.
        features: input features with their names.
        outputs: output features.
        positions: see `build_profile`.
    """
    profiles = [_profile(name, "input", column) for name, column in features]
    taken = {feature.name for feature in profiles}
    for name, column in (outputs or {}).items():
        profiles.append(_profile(f"{OUTPUT_PREFIX}{name}" if name in taken else name, "output", column))
    return Profile(rows=rows, features=tuple(profiles), positions=dict(positions or {}))


def shared_rows(columns: Mapping[tuple[Role, str], Column]) -> int:
    """The number of rows that all columns have, each under its role and name.

    Raises:
        UsageError: two differ, or there is none.
    """
    lengths = {" ".join(key): len(column) for key, column in columns.items()}
    if not lengths:
        raise UsageError("There are no columns.")
    (first, rows), *others = lengths.items()
    for name, length in others:
        if length != rows:
            raise UsageError(f"The {printable(name)} has {length} rows, the {printable(first)} {rows}.")
    return rows


def _profile(name: str, role: Role, column: Column) -> FeatureProfile:
    if not values.is_scalar(column):
        return _empty(name, role, "other", 0, Missing(invalid=len(column)))
    if values.holds_numbers(column):
        return profile_numbers(name, role, values.numbers(column))
    return profile_categories(name, role, values.categories(column))


def profile_numbers(name: str, role: Role, found: Numbers) -> FeatureProfile:
    """Profile a feature from all of its numbers."""
    if len(found.finite):
        return _numeric(name, role, found)
    return _empty(name, role, str(found.ordered.dtype), len(found.ordered), found.missing)


def profile_categories(name: str, role: Role, counted: Categories) -> FeatureProfile:
    """Profile a feature from the counts of all of its categories."""
    if counted.counts:
        return _categorical(name, role, counted)
    return _empty(name, role, "text", 0, counted.missing)


def _empty(name: str, role: Role, dtype: str, present: int, missing: Missing) -> FeatureProfile:
    tally = Tally(bins=np.asarray([present], dtype=np.int64), missing=missing)
    return FeatureProfile(name=name, role=role, kind="empty", dtype=dtype, tally=tally)


def _numeric(name: str, role: Role, found: Numbers) -> FeatureProfile:
    ordered = found.finite
    changes = np.flatnonzero(ordered[1:] != ordered[:-1])
    distinct = ordered[np.append(0, changes + 1)] if len(changes) < bins.DISCRETE_INTEGERS else None
    ends = (ordered[0].item(), ordered[-1].item())
    feature = numeric_bins(name, role, bins.quantiles(ordered), distinct, ends, _scale(ordered))
    return replace(feature, tally=tally_numbers(feature, found))


def numeric_bins(
    name: str,
    role: Role,
    quantiles: Array,
    distinct: Array | None,
    ends: tuple[float | int, float | int],
    scale: float,
) -> FeatureProfile:
    """The bins of a numeric feature; its tally holds nothing yet but both ends.

    Args:
        name: of the feature.
        role: input or output.
        quantiles: observed values [FINE_BINS - 1].
        distinct: all values, ascending; None when they are too many to be bins.
        ends: the smallest and the largest finite value.
        scale: by which distances are divided.
    """
    feature = FeatureProfile(
        name=name,
        role=role,
        kind="numeric",
        dtype=str(quantiles.dtype),
        quantiles=tuple(quantiles.tolist()),
        scale=scale,
        tally=Tally(bins=np.empty(0, np.int64), minimum=ends[0], maximum=ends[1]),
    )
    if distinct is not None and bins.is_discrete(distinct):
        kind: Kind = "constant" if len(distinct) == 1 else "discrete"
        return replace(feature, kind=kind, values=tuple(distinct.tolist()))
    if len(deciles := bins.edges(quantiles, ends[1], 10)) < 2:
        # One value holds nearly everything: below, equal and above say more than one edge.
        most = deciles[0].item() if len(deciles) else ends[1]
        return replace(feature, kind="discrete", values=(most,))
    return feature


def _scale(ordered: Array) -> float:
    quarter = len(ordered) // 4
    quarters = (ordered[quarter], ordered[-1 - quarter])

    def deviation() -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.std(ordered.astype(np.float64)))

    return scale_of(*quarters, deviation)


def scale_of(low: float, high: float, deviation: Callable[[], float]) -> float:
    """By what distances are divided: from the quartiles, else the standard deviation, else 1."""
    spread = (float(high) - float(low)) / _NORMAL_IQR
    if spread <= 0:
        spread = deviation()
    return spread if np.isfinite(spread) and spread > 0 else 1.0


def _categorical(name: str, role: Role, counted: Categories) -> FeatureProfile:
    ranked = sorted(counted.counts.items(), key=lambda entry: (-entry[1], entry[0]))
    kept, tail = ranked[:CATEGORIES_KEPT], ranked[CATEGORIES_KEPT:]
    tally = Tally(
        bins=np.asarray([count for _, count in kept], dtype=np.int64),
        missing=counted.missing,
        other=sum(count for _, count in tail),
    )
    keys = tuple(key for key, _ in kept)
    return FeatureProfile(
        name=name, role=role, kind="categorical", dtype="text", categories=keys, tally=tally
    )
