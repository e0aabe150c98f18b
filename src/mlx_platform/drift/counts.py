"""A window counted on the bins of a profile."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Columns
from mlx_platform.drift.feature import Role, tally_column
from mlx_platform.drift.features import output_features
from mlx_platform.drift.profile import Profile, shared_rows
from mlx_platform.drift.tally import Tally
from mlx_platform.drift.values import Column

Key = tuple[Role, str]
"""Of a feature's column: whether it is of the inputs or the answers, and its name."""


@dataclass(frozen=True, slots=True)
class Counts:
    """One tally for each feature of the profile, in its order. Counts of shards are added with `+`."""

    baseline_id: str
    rows: int
    tallies: tuple[Tally, ...]

    @classmethod
    def nothing(cls, profile: Profile) -> Self:
        """The counts of no rows."""
        empty = tuple(Tally.nothing(feature.bin_count) for feature in profile.features)
        return cls(profile.baseline_id, 0, empty)

    def __add__(self, more: "Counts") -> "Counts":
        if more.baseline_id != self.baseline_id:
            raise UsageError(
                f"Counts on the bins of {more.baseline_id} cannot be added to those of {self.baseline_id}."
            )
        tallies = tuple(one + other for one, other in zip(self.tallies, more.tallies, strict=True))
        return Counts(self.baseline_id, self.rows + more.rows, tallies)

    def document(self) -> dict[str, Any]:
        return {"rows": self.rows, "tallies": [tally.document() for tally in self.tallies]}

    @classmethod
    def from_document(cls, baseline_id: str, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote.

        Raises:
            UsageError: a count is negative.
        """
        rows = int(document["rows"])
        if rows < 0:
            raise UsageError("Counts hold a negative number of rows.")
        return cls(baseline_id, rows, tuple(map(Tally.from_document, document["tallies"])))

    def check(self, profile: Profile) -> None:
        """Refuse counts that are not on the bins of a profile.

        Raises:
            UsageError: they belong to another baseline, or their bins are others.
        """
        if self.baseline_id != profile.baseline_id:
            raise UsageError(f"The counts belong to baseline {self.baseline_id}, not {profile.baseline_id}.")
        if [len(tally.bins) for tally in self.tallies] != [each.bin_count for each in profile.features]:
            raise UsageError("The counts lie on other bins than the baseline's.")


def count(profile: Profile, inputs: Mapping[str, Column], outputs: Columns | None = None) -> Counts:
    """Count rows on a profile's bins; a feature whose column is not there has no rows in the counts.

    Args:
        profile: of the baseline.
        inputs: input features by name, each [rows]; others than the profile's are ignored.
        outputs: the model's answers, [rows] or [rows, k].

    Raises:
        UsageError: columns differ in their number of rows.
    """
    return count_features(profile, features_of(inputs, outputs))


def features_of(inputs: Mapping[str, Column], outputs: Columns | None = None) -> dict[Key, Column]:
    """Input features and the answers' features, each [rows], under their keys."""
    found: dict[Key, Column] = {("input", name): column for name, column in inputs.items()}
    return found | {("output", name): column for name, column in output_features(outputs or {}).items()}


def count_features(profile: Profile, named: Mapping[Key, Column]) -> Counts:
    """Count features of inputs and answers; see `count`."""
    if not named:
        return Counts.nothing(profile)
    rows = shared_rows(named)
    tallies = []
    for feature in profile.features:
        column = named.get((feature.role, feature.column))
        tallies.append(Tally.nothing(feature.bin_count) if column is None else tally_column(feature, column))
    return Counts(profile.baseline_id, rows, tuple(tallies))


def count_chunks(profile: Profile, rows: int, chunks: Iterable[Mapping[str, Column]]) -> Counts:
    """Count input features that come in pieces, in any order.

    Args:
        profile: of the baseline.
        rows: how many there are in all.
        chunks: each some features for some rows.
    """
    places = {feature.name: at for at, feature in enumerate(profile.features) if feature.role == "input"}
    tallies = list(Counts.nothing(profile).tallies)
    for chunk in chunks:
        for name in chunk.keys() & places.keys():
            at = places[name]
            tallies[at] += tally_column(profile.features[at], chunk[name])
    return Counts(profile.baseline_id, rows, tuple(tallies))
