"""The traffic of a window as it was counted on a baseline's bins, and what could not be counted."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast, get_args

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.span import ALWAYS, Grid, Span, make_grid, time_zone
from mlx_platform.core.text import did_you_mean, listed, printable
from mlx_platform.drift.counts import Counts
from mlx_platform.drift.feature import Role
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.shard import Place
from mlx_platform.drift.strata import Strata
from mlx_platform.traffic.log import LogStats

By = Literal["arm", "version"]
MOST_WINDOWS = 1000


@dataclass(frozen=True, slots=True)
class Cut:
    """Which traffic is meant, and how it is cut up.

    Attributes:
        span: of event time.
        grid: windows within it.
        by: what gets a result of its own each.
        arm: only what this arm answered.
        entity: only what this server, model or entity answered, in the words of a log of others.
    """

    span: Span = ALWAYS
    grid: Grid | None = None
    by: By | None = None
    arm: str | None = None
    entity: str | None = None

    @property
    def needs_log(self) -> bool:
        """Whether rows without a time and an answering server cannot be cut like this."""
        return bool(self.span.since or self.span.until or self.grid or self.by or self.arm or self.entity)


@dataclass(slots=True)
class Left:
    """Records of the window that are not rows to compare, by reason."""

    failed: int = 0
    other_digest: int = 0
    truncated: int = 0
    future: int = 0
    other_arm: int = 0
    other_entity: int = 0


@dataclass(slots=True)
class Window:
    """What was counted, and what was not.

    `parts` are the counts by span, arm and version, on the bins of `profile`.
    """

    source: str
    cut: Cut
    profile: Profile
    parts: dict[Place, Strata]
    stats: LogStats
    roles: tuple[Role, ...] = ("input", "output")
    left: Left = field(default_factory=Left)
    first: datetime | None = None
    last: datetime | None = None
    repeated: tuple[str, ...] = ()

    @property
    def span(self) -> Span:
        return self.cut.span

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts.values())

    @property
    def counts(self) -> Counts:
        """All parts together, as they are judged; see `Strata.effective`."""
        return pooled(self.profile, self.parts.values())

    @property
    def arms(self) -> Mapping[str, int]:
        """Rows by arm, the most first."""
        found: Counter[str] = Counter()
        for place, part in self.parts.items():
            if place.arm:
                found[place.arm] += part.rows
        return dict(found.most_common())

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of requests that were logged."""
        return tuple(sorted({share for part in self.parts.values() for share in part.shares}))

    def groups(self) -> dict[str, dict[Place, Strata]]:
        """The parts by arm or version, as asked for; all of them under no name otherwise."""
        by = self.cut.by
        found: dict[str, dict[Place, Strata]] = {}
        for place, part in self.parts.items():
            name = "" if by is None else place.arm if by == "arm" else place.version
            found.setdefault(name or ("" if by is None else "(none)"), {})[place] = part
        return dict(sorted(found.items()))

    def document(self) -> dict[str, Any]:
        return {
            "source": self.source,
            **self.span.document(),
            **(self.cut.grid.document() if self.cut.grid else {}),
            "first": rfc3339(self.first) if self.first else None,
            "last": rfc3339(self.last) if self.last else None,
            "rows": self.rows,
            "effective_rows": self.counts.rows,
            "arms": dict(self.arms),
            "sampling": list(self.shares),
            **self.stats.document(),
            "failed": self.left.failed,
            "truncated": self.left.truncated,
            "other_digest": self.left.other_digest,
            "other_arm": self.left.other_arm,
            "other_entity": self.left.other_entity,
            "future": self.left.future,
        }

    def warnings(self) -> list[str]:
        found = []
        if self.stats.share_usable < 1:
            found.append(
                f"Only {self.stats.share_usable:.2%} of the log's records in question are readable: "
                f"{self.stats.torn} torn, {self.stats.unreadable} damaged, "
                f"{self.stats.quarantined} files quarantined."
            )
        if self.stats.unpaired:
            found.append(
                f"{self.stats.unpaired:,} records hold a request without its answer, or the reverse; "
                "the side that is there counts."
            )
        if len(self.stats.origins) > 1 and self.cut.entity is None:
            named = listed([name or "(none)" for name in sorted(self.stats.origins)], 5)
            found.append(
                f"The log names several servers or models, which all count as one: {named}. "
                "Choose one with --entity."
            )
        if self.left.truncated:
            found.append(f"{self.left.truncated:,} records were logged without their inputs, for their size.")
        if self.left.other_digest:
            found.append(
                f"{self.left.other_digest:,} records were answered by another package, and left out."
            )
        if self.left.future:
            found.append(
                f"{self.left.future:,} records lie more than an hour in the future and were left out: "
                "a clock is wrong, the server's or this machine's."
            )
        if len(self.shares) > 1:
            found.append(
                f"The sampling changed within the window ({_list(self.shares)}), so rows have weights: "
                f"{self.rows:,} rows say as much as {self.counts.rows:,} equal ones."
            )
        if self.repeated:
            found.append(f"Counted already, and passed over: {listed(list(self.repeated), 5)}.")
        return found


def pooled(profile: Profile, parts: Iterable[Strata]) -> Counts:
    """Parts together, as they are judged."""
    whole = Strata(profile.baseline_id, {})
    for part in parts:
        whole = whole + part
    return whole.effective(profile)


def by_span(parts: Mapping[Place, Strata]) -> dict[Span, list[Strata]]:
    """The parts of each window, the earliest first."""
    found: dict[Span, list[Strata]] = {}
    for place, part in parts.items():
        found.setdefault(place.span, []).append(part)
    return dict(sorted(found.items(), key=lambda entry: (entry[0].since is not None, entry[0].since)))


def check_windows(spans: int, grid: Grid) -> None:
    """Refuse more windows than anybody looks at, before they fill the memory.

    Raises:
        UsageError: there are.
    """
    if spans > MOST_WINDOWS:
        raise UsageError(
            f"The traffic spans more than {MOST_WINDOWS:,} windows of {grid.length}.",
            hint="Write longer windows, such as --every 1d, or a shorter span with --since.",
        )


def _list(shares: Iterable[float]) -> str:
    return listed([f"{share:.4g}" for share in shares], 5)


def make_cut(
    span: Span,
    *,
    every: str | None = None,
    zone: str | None = None,
    by: str | None = None,
    arm: str | None = None,
    entity: str | None = None,
) -> Cut:
    """Read how traffic is to be cut up.

    Raises:
        UsageError: no such length, zone or way to tell traffic apart; a zone without windows.
    """
    if by is not None and by not in get_args(By):
        raise UsageError(
            f"--by takes arm or version, not {printable(by, 40)!r}.", hint=did_you_mean(by, get_args(By))
        )
    if zone is not None and every is None:
        raise UsageError("--zone is the zone of windows.", hint="Name their length as well: --every 1d.")
    grid = make_grid(every, time_zone(zone or "UTC")) if every is not None else None
    return Cut(span, grid, cast("By | None", by), arm, entity)
