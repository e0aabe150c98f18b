"""`mlx rollout history`: every rollout of a model and how it ended, or one of them from start to end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import plural, printable
from mlx_platform.registry.journal import Event
from mlx_platform.registry.ref import check_name
from mlx_platform.registry.rollout import transition_of
from mlx_platform.serving.rollout.state import Rollout, rollout_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.rollouts import page
from mlx_platform.workflows.rollouts.curves import curves
from mlx_platform.workflows.rollouts.planning import duration, metric_table, step_table
from mlx_platform.workflows.rollouts.seen import Seen, document_of, read, see


def history(context: Context, name: str, *, rollout: str | None = None, report: Path | None = None) -> Result:
    """Tell the rollouts of a model, the newest first, or every transition of one.

    Args:
        context: the command's context.
        name: the model.
        rollout: the id of one, or how it begins.
        report: a folder for the report, with the timeline and curves of the looks that this machine has.

    Raises:
        NotFoundError: no such model or rollout.
        IntegrityError: the journal is broken.
    """
    check_targets(report=report)
    if rollout is not None:
        result = _story(context, see(context, name, rollout))
    else:
        result = _list(context, check_name(name))
    return write_reports(result, report=report)


def _list(context: Context, name: str) -> Result:
    groups = context.catalog.rollouts(name)
    if not groups:
        context.catalog.versions(name, limit=1)  # a model that is not there is said first
    rows = [_row(group) for group in reversed(groups)]
    columns = ("rollout", "version", "started", "took", "state", "why", "who")
    newest = rows[0]["id"] if rows else ""
    return Result(
        command="rollout history",
        data={"name": name, "rollouts": [row["data"] for row in rows]},
        report=Report(
            title=f"Rollouts of {name}",
            summary=f"{plural(len(rows), 'rollout')} of {name}.",
            sections=(Table("", columns, tuple(row["cells"] for row in rows)),) if rows else (),
            next_steps=(f"mlx rollout history {name} --id {newest}",)
            if rows
            else (f"mlx rollout start {name}/NUMBER",),
        ),
    )


def _row(events: Sequence[Event]) -> dict[str, Any]:
    """One rollout in a line; one that this version of mlx cannot read is there as well."""
    first, last = events[0], events[-1]
    try:
        found: Rollout | None = read(events)
    except IntegrityError:
        found = None
    told = transition_of(last)
    state = found.state if found else "cannot be read"
    why = page.why_text(found) if found else ""
    identity = told.id if told else ""
    version = f"{last.model}/{first.to_version}"
    took = (last.time - first.time).total_seconds()
    data = {
        "id": identity,
        "version": first.to_version,
        "stable": found.stable if found else None,
        "state": found.state if found else None,
        "active": last.to_version is not None,
        "cause": found.cause if found else None,
        "reason": found.reason if found else None,
        "actor": last.actor,
        "started_at": rfc3339(first.time),
        "changed_at": rfc3339(last.time),
        "events": [event.number for event in events],
    }
    going = last.to_version is not None
    cells = (
        identity,
        version,
        both_zones(first.time),
        "goes on" if going else duration(took),
        state,
        printable(why, 120),
        printable(last.actor, 80),
    )
    return {"id": identity, "data": data, "cells": cells}


def _story(context: Context, seen: Seen) -> Result:
    rollout = seen.rollout
    plan = rollout.plan
    steps = tuple(_step(seen.events, place) for place in range(len(seen.events)))
    table = Table(
        "Transitions",
        ("event", "time", "state", "step", "weight", "who", "why"),
        tuple(_cells(event, found) for event, found in steps),
        numeric=(0, 3, 4),
    )
    return Result(
        command="rollout history",
        data=page.document(seen) | {"events": [event.document() for event in seen.events]},
        report=Report(
            title=f"Rollout {rollout.id} of {rollout.ref}",
            summary=page.summary(seen),
            facts=tuple(fact for fact in page.facts(seen) if fact != Fact("leads", "")),
            sections=(table,),
            checks=page.checks(seen),
            details=(*curves(context, seen), step_table(plan, "Plan"), metric_table(plan, "Metrics")),
            next_steps=(f"mlx show {rollout.ref}", f"mlx history {rollout.model}"),
        ),
    )


def _step(events: Sequence[Event], place: int) -> tuple[Event, Rollout | None]:
    """A transition with the rollout as it was then."""
    told = [(event.number, document_of(event)) for event in (events[0], events[place])]
    try:
        return events[place], rollout_of(told)
    except IntegrityError:
        return events[place], None


def _cells(event: Event, found: Rollout | None) -> tuple[str, ...]:
    if found is None:
        return (str(event.number), both_zones(event.time), "cannot be read", "", "", event.actor, "")
    copied = found.split[1] and not found.share
    return (
        str(event.number),
        both_zones(event.time),
        found.state,
        f"{found.step + 1} of {len(found.plan.steps)}",
        f"{found.shadow:g} % copied" if copied else f"{found.share:g} %",
        printable(event.actor, 80),
        # Whoever takes over leaves the state as it was, and says so beside it.
        page.why_text(found) if event.actor == found.actor else printable(event.reason, 500),
    )
