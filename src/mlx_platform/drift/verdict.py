"""From two sets of counts to a verdict for each feature, and from those to one for the window."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.statistics import benjamini_hochberg
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.counts import Counts
from mlx_platform.drift.decide import ALPHA, Decision
from mlx_platform.drift.family import Member, decide_family, families, family_of, measure_family
from mlx_platform.drift.feature import FeatureProfile, Kind, Role
from mlx_platform.drift.measure import Scores
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.table import BINS, largest
from mlx_platform.drift.tally import Tally

FALSE_DISCOVERIES = 0.01
"""The share of significant features that may be so by chance (Benjamini and Hochberg)."""
_SHOWN = 20  # categories named in a result

FailOn = Literal["drift", "warn"]


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    DRIFT = "drift"
    INSUFFICIENT = "insufficient_data"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class FeatureDrift:
    """Everything about one feature; scores are None where nothing could be compared."""

    name: str
    role: Role
    kind: Kind
    level: Level
    rows: tuple[int, int]
    missing_rate: tuple[float, float]
    message: str = ""
    scores: Scores | None = None
    decision: Decision | None = None
    p_value: float | None = None
    significant: bool = False
    out_of_range: float = 0.0
    infinite: int = 0
    invalid: int = 0
    new_categories: tuple[tuple[str, int], ...] = ()
    gone_categories: tuple[tuple[str, int], ...] = ()

    @property
    def psi(self) -> float:
        return self.scores.psi if self.scores else math.nan

    def document(self) -> dict[str, Any]:
        """The JSON form; a number that is not finite is null."""
        found, decision = self.scores, self.decision
        fields: dict[str, Any] = {
            "name": self.name,
            "role": self.role,
            "kind": self.kind,
            "verdict": str(self.level),
            "message": self.message,
            "rows": {"baseline": self.rows[0], "window": self.rows[1]},
            "missing_rate": {"baseline": self.missing_rate[0], "window": self.missing_rate[1]},
            "p_value": self.p_value,
            "significant": self.significant,
            "out_of_range": self.out_of_range,
            "infinite": self.infinite,
            "invalid": self.invalid,
            "new_categories": [{"value": key, "rows": count} for key, count in self.new_categories],
            "gone_categories": [{"value": key, "rows": count} for key, count in self.gone_categories],
        }
        for name in (
            "psi",
            "psi_present",
            "psi_missing",
            "kl",
            "kl_reverse",
            "js_distance",
            "ks",
            "ks_p_value",
            "wasserstein",
        ):
            fields[name] = getattr(found, name) if found else None
        chi_square = found.chi_square if found else None
        fields["chi_square"] = chi_square.statistic if chi_square else None
        fields["chi_square_degrees"] = chi_square.degrees if chi_square else None
        fields["chi_square_p_value"] = chi_square.p_value if chi_square else None
        fields["js_distance_bits"] = found.js_distance / math.sqrt(math.log(2)) if found else None
        fields["psi_adjusted"] = decision.adjusted if decision else None
        fields["psi_limit"] = decision.limit if decision and math.isfinite(decision.limit) else None
        fields["method"] = decision.method if decision else None
        fields["bins"] = {
            "requested": BINS,
            "used": found.bins if found else None,
            "decided": decision.bins if decision else None,
        }
        fields["contributions"] = [
            {"bin": part.label, "baseline": part.baseline, "window": part.window, "psi": part.psi}
            for part in (found.contributions if found else ())
        ]
        return fields


def compare(
    profile: Profile,
    counts: Counts,
    settings: DriftSettings,
    *,
    roles: Collection[Role] = ("input", "output"),
) -> tuple[FeatureDrift, ...]:
    """Judge every feature of a window; one that cannot be compared never stops the others.

    Args:
        profile: of the baseline.
        counts: of the window, on the profile's bins.
        settings: the PSI from which a feature warns or has drifted.
        roles: judge only these features.

    Raises:
        UsageError: the counts belong to another baseline.
    """
    counts.check(profile)
    pairs = zip(profile.features, counts.tallies, strict=True)
    meant = [(feature, tally) for feature, tally in pairs if feature.role in roles]
    judged = [_judge(members, settings) for members in families(meant)]
    tested = [index for index, (found, _) in enumerate(judged) if found.p_value is not None]
    p_values = [judged[index][0].p_value or 0.0 for index in tested]
    rejected = dict(zip(tested, benjamini_hochberg(p_values, FALSE_DISCOVERIES), strict=True))
    return tuple(
        _settle(found, decisions, settings, chosen=rejected.get(index, False))
        for index, (found, decisions) in enumerate(judged)
    )


def _judge(members: Sequence[Member], settings: DriftSettings) -> tuple[FeatureDrift, tuple[Decision, ...]]:
    feature, window = members[0]
    found = replace(_describe(feature, window), name=family_of(feature.name))
    if found.message:
        return found, ()
    with_missing = feature.tally.missing_rows + window.missing_rows > 0
    wide = settings.limits(found.name)[1]
    decisions = [decide_family(members, wide=wide, missing=with_missing)]
    if with_missing and feature.tally.present and window.present:
        # Many missing rows can hide what happens to the others.
        decisions.append(decide_family(members, wide=wide, missing=False))
    p_value = min(1.0, len(decisions) * min(decision.p_value for decision in decisions))
    beyond = max(_describe(*member).out_of_range for member in members)
    scores = measure_family(members)
    return replace(found, scores=scores, p_value=p_value, out_of_range=beyond), tuple(decisions)


def _describe(feature: FeatureProfile, window: Tally) -> FeatureDrift:
    base = feature.tally
    known = base.fresh.keys()
    new = largest({key: count for key, count in window.fresh.items() if key not in known}, _SHOWN)
    gone = {}
    if feature.kind == "categorical":
        pairs = zip(feature.categories, base.bins.tolist(), window.bins.tolist(), strict=True)
        gone = {key: before for key, before, now in pairs if before and not now}
    return FeatureDrift(
        name=feature.name,
        role=feature.role,
        kind=feature.kind,
        level=Level.ERROR,
        rows=(base.rows, window.rows),
        missing_rate=(base.missing_rows / max(1, base.rows), window.missing_rows / max(1, window.rows)),
        message=_why_not(feature, window),
        out_of_range=(window.below + window.above) / max(1, window.present),
        infinite=window.posinf + window.neginf,
        invalid=window.missing.invalid,
        new_categories=tuple(new),
        gone_categories=tuple(largest(gone, _SHOWN)),
    )


def _why_not(feature: FeatureProfile, window: Tally) -> str:
    """Why a feature cannot be compared at all; nothing when it can."""
    base = feature.tally
    if not base.rows:
        return "The baseline has no such column."
    if not base.present and base.missing.invalid:
        return "The baseline holds no values that can be counted."
    if not window.rows:
        return "The window has no such column."
    if not window.present and window.missing.invalid:
        return f"The window holds values of another type than the baseline's {feature.dtype}."
    return ""


def _settle(
    found: FeatureDrift, decisions: Sequence[Decision], settings: DriftSettings, *, chosen: bool
) -> FeatureDrift:
    if not decisions:
        return found
    limits = settings.limits(found.name)
    significant = chosen and found.p_value is not None and found.p_value < ALPHA
    decision = min(decisions, key=lambda each: each.p_value)
    if significant:
        alarming = [each for each in decisions if each.p_value < ALPHA]
        if exact := [each for each in alarming if each.method != "chi2"]:
            decision, level = exact[0], Level.DRIFT  # at such sizes only a large change can be significant
        else:
            decision = max(alarming, key=lambda each: each.adjusted)
            level = _level(decision.adjusted, *limits)
    else:
        decision = decisions[0]
        narrow = decision.method == "chi2" and decision.limit <= limits[1]
        level = Level.OK if narrow else Level.INSUFFICIENT
    return replace(found, level=level, decision=decision, significant=significant)


def _level(adjusted: float, warn: float, drift: float) -> Level:
    if adjusted >= drift:
        return Level.DRIFT
    return Level.WARN if adjusted >= warn else Level.OK


def overall(found: Sequence[FeatureDrift], settings: DriftSettings, *, fail_on: FailOn = "drift") -> Verdict:
    """One verdict for a window, by policy.

    Drift outranks errors, and an error outranks everything else. A window passes only if it would pass
    whatever the features with too few rows turn out to be; otherwise it is undecided. Features of weight 0
    decide nothing.
    """
    bad = {Level.DRIFT, Level.WARN} if fail_on == "warn" else {Level.DRIFT}
    total = dict.fromkeys(Level, 0.0)
    for feature in found:
        weight = settings.weight(feature.name)
        total[feature.level] += weight if settings.policy == "weighted" else float(weight > 0)
    alarms = sum(total[level] for level in bad)
    countable = sum(total.values()) - total[Level.ERROR]
    limit = _limit(settings, countable)
    if alarms and alarms >= limit:
        return Verdict.FAIL
    if total[Level.ERROR]:
        return Verdict.ERROR
    return Verdict.PASS if countable and alarms + total[Level.INSUFFICIENT] < limit else Verdict.UNDECIDED


def _limit(settings: DriftSettings, countable: float) -> float:
    """How many features, or how much of their weight, make a window fail."""
    match settings.policy:
        case "any":
            return 1
        case "share":
            return max(1, math.ceil(settings.share * countable))
        case "weighted":
            return settings.share * countable * (1 - 1e-9)  # sums of weights are rounded


def level_counts(found: Sequence[FeatureDrift]) -> Mapping[str, int]:
    """How many features have each level."""
    return {str(level): sum(feature.level is level for feature in found) for level in Level}
