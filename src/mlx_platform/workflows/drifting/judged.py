"""Counts compared with the baseline: of all the traffic, and of each window of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.span import Span
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.shard import Place
from mlx_platform.drift.strata import Strata
from mlx_platform.drift.verdict import FailOn, FeatureDrift, compare, level_counts, overall
from mlx_platform.workflows.drifting.window import Window, by_span, pooled


@dataclass(frozen=True, slots=True)
class Judged:
    """The traffic of a span, feature by feature, in the order of the profile."""

    span: Span
    rows: int
    features: tuple[FeatureDrift, ...]
    verdict: Verdict

    def document(self) -> dict[str, Any]:
        return {
            **self.span.document(),
            "rows": self.rows,
            "verdict": str(self.verdict),
            "verdict_counts": level_counts(self.features),
            "features": [
                {
                    "name": each.name,
                    "verdict": str(each.level),
                    "psi": each.scores.psi if each.scores else None,
                    "psi_adjusted": each.decision.adjusted if each.decision else None,
                    "p_value": each.p_value,
                }
                for each in self.features
            ],
        }


@dataclass(frozen=True, slots=True)
class Group:
    """One arm or version, or everything where nothing was to be told apart (`name` is then empty).

    Attributes:
        whole: all windows together.
        trend: each window, the earliest first; empty where no windows were asked for.
        latest: the newest window that is over and holds rows.
        verdict: the worse of `whole` and `latest`; see `worse`.
    """

    name: str
    whole: Judged
    trend: tuple[Judged, ...] = ()
    latest: Judged | None = None
    verdict: Verdict = Verdict.UNDECIDED


def judge(window: Window, settings: DriftSettings, fail_on: FailOn, *, now: datetime) -> tuple[Group, ...]:
    """Compare every group of a window with the baseline; at least one."""
    groups = window.groups() or {"": {}}
    return tuple(_group(name, parts, window, settings, fail_on, now) for name, parts in groups.items())


def _group(
    name: str,
    parts: Mapping[Place, Strata],
    window: Window,
    settings: DriftSettings,
    fail_on: FailOn,
    now: datetime,
) -> Group:
    whole = _judged(window.span, list(parts.values()), window, settings, fail_on)
    if not window.cut.grid:
        return Group(name, whole, verdict=whole.verdict)
    trend = tuple(_judged(span, strata, window, settings, fail_on) for span, strata in by_span(parts).items())
    over = [each for each in trend if each.rows and each.span.until and each.span.until <= now]
    latest = over[-1] if over else None
    return Group(name, whole, trend, latest, worse(whole.verdict, latest.verdict if latest else None))


def _judged(
    span: Span, strata: Sequence[Strata], window: Window, settings: DriftSettings, fail_on: FailOn
) -> Judged:
    counts = pooled(window.profile, strata)
    rows = sum(part.rows for part in strata)
    if not rows:
        return Judged(span, 0, (), Verdict.UNDECIDED)
    found = compare(window.profile, counts, settings, roles=window.roles)
    return Judged(span, rows, found, overall(found, settings, fail_on=fail_on))


def worse(whole: Verdict, latest: Verdict | None) -> Verdict:
    """The verdict over all windows.

    The whole has the most rows, and dilutes what began an hour ago; the newest window shows that. It may
    bring a failure or an error, but with few rows of its own it does not take back what the whole shows.
    """
    if Verdict.FAIL in (whole, latest):
        return Verdict.FAIL
    return Verdict.ERROR if Verdict.ERROR in (whole, latest) else whole
