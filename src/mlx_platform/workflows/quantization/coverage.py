"""Whether the calibration rows look like the rows that a model meets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.report import Table
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.tensors import Columns
from mlx_platform.core.text import listed, plural, printable
from mlx_platform.drift.counts import count
from mlx_platform.drift.feature import Role
from mlx_platform.drift.profile import Profile, build_profile
from mlx_platform.drift.verdict import FeatureDrift, Level, compare

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import Package

ENOUGH = 0.95
ANSWERED = 256  # calibration rows that are answered, taken evenly
COMMON = 0.05  # the share of answers from which a label should be met
_NAMED = 5
_SHOWN, _LISTED = 200, 20
_JUDGED = "the judged rows"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the calibration rows compare with others.

    Attributes:
        share: of the judged values that lie within what calibration saw.
        outside: features of which a twentieth of the judged values or more do not.
        against: what the distributions were compared with, in words.
        compared: feature by feature, inputs and answers.
        unmet: labels that are common there and that no calibration row is answered with, with their share.
        labels: that calibration rows are answered with; 0 where the model gives none.
    """

    share: float
    outside: tuple[str, ...]
    against: str
    compared: tuple[FeatureDrift, ...]
    unmet: Mapping[str, float]
    labels: int

    @property
    def different(self) -> tuple[str, ...]:
        """Inputs whose distribution is another one."""
        return tuple(found.name for found in self._inputs if found.level is Level.DRIFT)

    @property
    def _inputs(self) -> tuple[FeatureDrift, ...]:
        return tuple(found for found in self.compared if found.role == "input")

    @property
    def _ordered(self) -> list[FeatureDrift]:
        return sorted(self.compared, key=lambda found: (-found.psi if found.scores else 0.0, found.name))

    def document(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "features": len(self._inputs),
            "different": list(self.different),
            "outside": list(self.outside),
            "against": self.against,
            "labels": self.labels,
            "unmet_labels": dict(self.unmet),
            "most_different": [
                {"feature": found.name, "role": found.role, "psi": found.psi, "verdict": str(found.level)}
                for found in self._ordered[:_LISTED]
                if found.scores
            ],
        }

    def table(self) -> Table:
        """Feature by feature, the most different first."""
        rows = tuple(
            (
                printable(found.name, 60),
                found.role,
                f"{found.psi:.3f}" if found.scores else "",
                f"{_outside(found):.1%}",
                str(found.level).replace("_", " "),
            )
            for found in self._ordered[:_SHOWN]
        )
        title = f"Calibration rows beside {self.against}"
        return Table(title, ("feature", "role", "PSI", "beyond its range", "verdict"), rows, numeric=(2, 3))

    def warnings(self, settings: DriftSettings) -> tuple[str, ...]:
        """What is worth a warning: some features of many differ in any two samples of real data."""
        found = []
        total, different = len(self._inputs), self.different
        if different and len(different) >= settings.share * total:
            found.append(
                f"{len(different)} of {plural(total, 'feature')} of the calibration rows do not look like"
                f" {self.against}: {listed(different, _NAMED, width=40)}."
                " Calibrate on real rows, not on random ones."
            )
        if self.share < ENOUGH:
            found.append(
                f"Only {self.share:.1%} of the judged values lie within what calibration saw;"
                f" farthest outside: {listed(self.outside, _NAMED, width=40)}."
            )
        if self.unmet:
            named = listed([f"{name} ({share:.0%})" for name, share in self.unmet.items()], _NAMED, width=40)
            found.append(
                f"No calibration row is answered with {named}, although such answers are common."
                " Calibrate on rows of every kind."
            )
        return tuple(found)


def cover(
    model: "Model",
    calibration: Columns,
    judged: Columns,
    met: Columns,
    answers: Columns,
    settings: DriftSettings,
    baseline: "Profile | None" = None,
    *,
    source: str = "",
) -> Coverage:
    """Compare the calibration rows with the rows of a baseline, else with the judged ones.

    Args:
        model: the float model.
        calibration: feature columns.
        judged: feature columns.
        met: the answers of the model to some of the calibration rows.
        answers: of the model to the judged rows.
        settings: from which distance two distributions differ.
        baseline: what the model was trained on, as its package says.
        source: the name of the baseline.
    """
    from mlx_platform.drift.extract.inputs import InputFeatures

    # Calibration rows may be rows of the baseline, which know all of its words: words say nothing here.
    if baseline is not None:
        aside = {f"{column}.oov" for column in baseline.vocabularies}
        features = tuple(feature for feature in baseline.features if feature.name not in aside)
        baseline = replace(baseline, features=features, vocabularies={}, baseline_id="")
    look = InputFeatures(model.spec, model.package.root)
    ours, theirs = look(calibration), look(judged)
    seen = build_profile(ours)
    outside = {found.name: _outside(found) for found in compare(seen, count(seen, theirs), settings)}
    against, profile = source, baseline
    if profile is None or not {found.name for found in profile.of_role("input")} & set(ours):
        against, profile = _JUDGED, build_profile(theirs, answers)
    inputs: tuple[Role, ...] = ("input",)
    outputs: tuple[Role, ...] = ("output",)
    compared = (
        *compare(profile, count(profile, ours), settings, roles=inputs),
        *compare(profile, count(profile, {}, met), settings, roles=outputs),
    )
    known = {str(label) for label in met.get("label", ())}
    common = _label_shares(profile) or _label_shares(build_profile({}, answers)) if known else {}
    return Coverage(
        share=1 - sum(outside.values()) / max(1, len(outside)),
        outside=tuple(name for name, share in outside.items() if share > 1 - ENOUGH),
        against=against,
        compared=compared,
        unmet={name: share for name, share in common.items() if name not in known},
        labels=len(known),
    )


def check_names(model: "Model", calibration: Columns, baseline: Profile | None, source: str) -> str:
    """A warning where a model that takes columns by their order is given other columns than its baseline's.

    Args:
        model: the float model.
        calibration: feature columns.
        baseline: what the model was trained on, as its package says.
        source: the name of the baseline.

    Raises:
        UsageError: they are the same columns in another order.
    """
    from mlx_platform.drift.extract.inputs import InputFeatures

    known = [found.name for found in baseline.of_role("input")] if baseline else []
    if not known or model.spec.columns:
        return ""
    ours = list(InputFeatures(model.spec, None)(calibration))
    place = next((at for at, pair in enumerate(zip_longest(known, ours)) if len(set(pair)) > 1), None)
    if place is None:
        return ""
    if sorted(known) == sorted(ours):
        raise UsageError(
            f"The model takes columns by their order, and column {place + 1} of the calibration rows is"
            f" {printable(ours[place], 80)!r} where {printable(source)} has {printable(known[place], 80)!r}.",
            hint="Bring the columns into the order of the training data, or name them in a model.toml.",
        )
    strange, missing = (
        [name for name in one if name not in other] for one, other in ((ours, known), (known, ours))
    )
    return (
        f"The model takes columns by their order, and the calibration rows have"
        f" {listed(strange, _NAMED, width=40) or 'nothing'} where {source} has"
        f" {listed(missing, _NAMED, width=40) or 'nothing'}: see to it that they mean the same."
    )


def _label_shares(profile: Profile) -> dict[str, float]:
    """Common labels among the answers that a profile counts, the most frequent first."""
    for found in profile.of_role("output"):
        if found.column == "label" and found.kind == "categorical":
            counts = dict(zip(found.categories, found.tally.bins.tolist(), strict=True))
            total = max(1, sum(counts.values()))
            return {name: number / total for name, number in counts.items() if number >= COMMON * total}
    return {}


def _outside(found: FeatureDrift) -> float:
    if found.level is Level.ERROR:
        return 1.0  # what could not be compared is not covered
    unseen = sum(rows for _, rows in found.new_categories) / max(1, found.rows[1])
    return min(1.0, found.out_of_range + unseen)


def baseline_of(package: "Package", ref: str) -> tuple[Profile | None, str]:
    """The profile of a package, if there is one that can be read, or a warning why not."""
    path = package.baseline_path
    if path is None:
        return None, ""
    try:
        return Profile.from_json(path.read_bytes()), ""
    except MlxError as error:
        return None, (
            f"The baseline of {ref} cannot be read, so the calibration rows are compared with"
            f" {_JUDGED}. {printable(error.message)}"
        )
