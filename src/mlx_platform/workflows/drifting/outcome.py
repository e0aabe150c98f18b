"""What a comparison of traffic with a baseline has found, as a result."""

from dataclasses import asdict, dataclass
from typing import Any

from mlx_platform.core.report import Report, Result
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.text import listed
from mlx_platform.core.verdict import Verdict, worst
from mlx_platform.drift.verdict import FailOn, FeatureDrift, Level, level_counts
from mlx_platform.workflows.drifting.baseline import Baseline
from mlx_platform.workflows.drifting.explain import chosen, explained, explanation
from mlx_platform.workflows.drifting.judged import Group
from mlx_platform.workflows.drifting.page import draw, worst_first
from mlx_platform.workflows.drifting.trend import side_by_side, with_trend
from mlx_platform.workflows.drifting.window import Window
from mlx_platform.workflows.subject import Subject


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every group of a window judged, and by what."""

    subject: Subject | None
    baseline: Baseline
    window: Window
    groups: tuple[Group, ...]
    settings: DriftSettings
    fail_on: FailOn

    @property
    def verdict(self) -> Verdict:
        return worst(group.verdict for group in self.groups)

    @property
    def features(self) -> tuple[FeatureDrift, ...]:
        """Those of all groups."""
        return tuple(feature for group in self.groups for feature in group.whole.features)


def result_of(outcome: Outcome, explain: str | None = None) -> Result:
    """The command's result; `explain` names a feature whose numbers are worked out.

    Raises:
        UsageError: there is no such feature.
    """
    groups, by, settings = outcome.groups, outcome.window.cut.by, outcome.settings
    subject, baseline = outcome.subject, outcome.baseline
    data: dict[str, Any] = {
        "model": subject.document() if subject else None,
        "baseline": {
            "id": baseline.profile.baseline_id,
            "rows": baseline.profile.rows,
            "source": baseline.source,
        },
        "window": outcome.window.document(),
        "policy": {**asdict(settings), "fail_on": outcome.fail_on},
    }
    if by is None:
        data |= _document(groups[0], settings, explain)
    else:
        data["by"] = by
        data["groups"] = [{by: group.name, **_document(group, settings, explain)} for group in groups]
    pages = [_page(outcome, group) for group in groups]
    if explain is not None:
        pairs = zip(pages, groups, strict=True)
        pages = [_explained(page, group, settings, explain) for page, group in pairs]
    return Result(
        command="drift",
        data=data,
        report=pages[0] if by is None else side_by_side(groups, pages, by),
        verdict=outcome.verdict,
        warnings=(
            *baseline.warnings,
            *outcome.window.warnings(),
            *_warnings(outcome),
            *(subject.warnings if subject else ()),
        ),
    )


def _explained(page: Report, group: Group, settings: DriftSettings, name: str) -> Report:
    found = group.whole.features
    return explained(page, chosen(found, name), settings, len(found)) if found else page


def _document(group: Group, settings: DriftSettings, explain: str | None) -> dict[str, Any]:
    found = worst_first(group.whole.features)
    document: dict[str, Any] = {
        "rows": group.whole.rows,
        "verdict": str(group.verdict),
        "verdict_counts": level_counts(found),
        "features": [feature.document() for feature in found],
    }
    if explain is not None and found:
        document["explanation"] = explanation(chosen(found, explain), settings)
    if group.trend:
        document["windows"] = [each.document() for each in group.trend]
        document["latest"] = group.latest.span.document() if group.latest else None
    return document


def _page(outcome: Outcome, group: Group) -> Report:
    found = worst_first(group.whole.features)
    page = draw(outcome.subject, outcome.baseline, outcome.window, found, outcome.settings, outcome.fail_on)
    return with_trend(page, group, outcome.window.cut.grid) if outcome.window.cut.grid else page


def _warnings(outcome: Outcome) -> list[str]:
    warnings = []
    profile, settings = outcome.baseline.profile, outcome.settings
    if "output" not in outcome.window.roles and profile.of_role("output"):
        warnings.append("A plain data file holds no answers of the model: only inputs are compared.")
    known = {feature.name for feature in profile.features}
    if unknown := sorted(settings.features.keys() - known):
        warnings.append(f"[drift.features] names what the baseline does not have: {listed(unknown, 5)}.")
    for group in outcome.groups:
        of = f"{group.name}: " if group.name else ""
        found = group.whole.features
        undecided = level_counts(found)[Level.INSUFFICIENT]
        if 0 < undecided < len(found):
            warnings.append(f"{of}{undecided} of {len(found)} features have too few rows to be judged.")
        if group.latest and group.latest.verdict is Verdict.UNDECIDED is not group.whole.verdict:
            warnings.append(
                f"{of}The newest whole window has too few rows to be judged by itself: {group.latest.rows:,}."
            )
    return warnings
