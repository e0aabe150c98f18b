"""Whether the calibration rows look like the rows that a model meets."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import Columns
from mlx_platform.core.text import listed, plural, printable
from mlx_platform.drift.counts import count
from mlx_platform.drift.profile import build_profile
from mlx_platform.drift.verdict import FeatureDrift, Level, compare

if TYPE_CHECKING:
    from mlx_platform.inference.spec import ModelSpec

ENOUGH = 0.95
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Coverage:
    """`share` of the judged values lie within what calibration saw; `different` features look unlike."""

    share: float
    features: int
    different: tuple[str, ...]
    outside: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "features": self.features,
            "different": list(self.different),
            "outside": list(self.outside),
        }


def cover(spec: "ModelSpec", calibration: Columns, judged: Columns, settings: DriftSettings) -> Coverage:
    """Compare the judged rows with the calibration rows, feature by feature.

    Args:
        spec: says what the columns are.
        calibration: feature columns.
        judged: feature columns.
        settings: from which distance two distributions differ.

    Raises:
        UsageError: a column is missing, or holds what the model cannot take.
    """
    from mlx_platform.inference.model import features

    missing = [name for name in spec.columns if name not in calibration or name not in judged]
    if missing:
        raise UsageError(f"The column {printable(missing[0])!r} is missing.")
    profile = build_profile(features(spec, calibration))
    found = compare(profile, count(profile, features(spec, judged)), settings)
    outside = {feature.name: _outside(feature) for feature in found}
    return Coverage(
        share=1 - sum(outside.values()) / max(1, len(outside)),
        features=len(found),
        different=tuple(feature.name for feature in found if feature.level is Level.DRIFT),
        outside=tuple(name for name, share in outside.items() if share > 1 - ENOUGH),
    )


def _outside(feature: FeatureDrift) -> float:
    if feature.level is Level.ERROR:
        return 1.0  # what could not be compared is not covered
    unseen = sum(rows for _, rows in feature.new_categories) / max(1, feature.rows[1])
    return min(1.0, feature.out_of_range + unseen)


def warnings_of(coverage: Coverage, settings: DriftSettings) -> tuple[str, ...]:
    """What is worth a warning: some features of many differ in any two samples of real data."""
    found = []
    if coverage.different and len(coverage.different) >= settings.share * coverage.features:
        found.append(
            f"{len(coverage.different)} of {plural(coverage.features, 'feature')} of the calibration rows"
            f" do not look like the rows that are judged: {listed(coverage.different, _NAMED, width=40)}."
            " Calibrate on real rows, not on random ones."
        )
    if coverage.share < ENOUGH:
        found.append(
            f"Only {coverage.share:.1%} of the judged values lie within what calibration saw;"
            f" farthest outside: {listed(coverage.outside, _NAMED, width=40)}."
        )
    return tuple(found)
