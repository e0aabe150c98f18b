"""A window counted on the bins of a profile."""

from dataclasses import dataclass
from typing import Self

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Columns, row_count
from mlx_platform.drift.feature import tally_column
from mlx_platform.drift.features import output_features
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.tally import Tally


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


def count(profile: Profile, inputs: Columns, outputs: Columns | None = None) -> Counts:
    """Count rows on a profile's bins; a feature whose column is not there has no rows in the counts.

    Args:
        profile: of the baseline.
        inputs: input features by name, each [rows]; others than the profile's are ignored.
        outputs: the model's answers, [rows] or [rows, k].

    Raises:
        UsageError: columns differ in their number of rows.
    """
    outputs = output_features(outputs or {})
    named = {("input", name): column for name, column in inputs.items()}
    named |= {("output", name): column for name, column in outputs.items()}
    if not named:
        return Counts.nothing(profile)
    rows = row_count({f"{role} {name}": column for (role, name), column in named.items()})
    tallies = []
    for feature in profile.features:
        column = named.get((feature.role, feature.column))
        tallies.append(Tally.nothing(feature.bin_count) if column is None else tally_column(feature, column))
    return Counts(profile.baseline_id, rows, tuple(tallies))
