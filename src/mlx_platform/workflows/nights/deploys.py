"""What was deployed when, and which mismatches began right after it."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from mlx_platform.core.clock import rfc3339, span_text
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.timeline import effective_times
from mlx_platform.workflows.nights.watch import Restart
from mlx_platform.workflows.nights.window import Night

SOON = timedelta(hours=1)
"""Mismatches that are first seen so long after something was deployed are taken to have begun with it."""


@frozen
class Deploy:
    """A move of an alias, a step of a rollout, or the start of a server process."""

    time: datetime
    text: str

    def document(self) -> dict[str, Any]:
        return {"time": rfc3339(self.time), "what": self.text}


def deploys_of(
    journal: Journal | None, restarts: Iterable[Restart], night: Night, *, now: datetime
) -> list[Deploy]:
    """Everything that was deployed from shortly before the window to its end, oldest first."""
    found = [
        Deploy(one.time, f"first answer of a new process of {printable(one.server, 64)}") for one in restarts
    ]
    events = journal.valid if journal else ()
    for event, time in zip(events, effective_times([each.time for each in events], now), strict=True):
        before, after = (
            f"{version}" if version else "nobody" for version in (event.from_version, event.to_version)
        )
        if before == after:
            text = f"{event.alias}: a step of the rollout of {event.model}/{after}"
        else:
            text = f"{event.alias} moved from {before} to {after} ({event.kind})"
        found.append(Deploy(time, printable(text, 200)))
    inside = (one for one in found if night.since - SOON <= one.time < night.until)
    return sorted(inside, key=lambda one: one.time)


def begins_with(first: datetime, deploys: Sequence[Deploy]) -> tuple[Deploy, str] | None:
    """The last deploy before mismatches were first seen, and how long before; None without one."""
    before = [one for one in deploys if timedelta(0) <= first - one.time <= SOON]
    if not before:
        return None
    return before[-1], span_text(first - before[-1].time)
