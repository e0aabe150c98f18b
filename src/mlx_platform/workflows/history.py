"""`mlx history`: who moved which alias, when, from where to where, and why."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from mlx_platform.core.clock import both_zones, parse_time, rfc3339
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import did_you_mean, listed, plural, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.registry.difference import Difference
from mlx_platform.registry.examination import journal_text
from mlx_platform.registry.journal import Event, Journal
from mlx_platform.registry.ref import AliasRef, LabelRef, NameRef, check_alias, check_name, parse_ref
from mlx_platform.registry.rollout import CANARY, active_rollout, counted, transition_of
from mlx_platform.registry.tombstone import Tombstone
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_table, holder_text

_OUTSIDE = "outside of mlx"


def history(
    context: Context, name: str, *, alias: str | None = None, at: str | None = None, verify: bool = False
) -> Result:
    """Tell the moves of a model's aliases, newest first, or who held them at a moment.

    The transitions of rollouts stand among them, as events of the alias `canary`.

    What somebody did to an alias outside of mlx stands above the moves, until it is adopted or put back.

    Args:
        context: the command's context.
        name: the model, or `NAME@ALIAS`.
        alias: only this one.
        at: a time with zone, or an age such as 24h; the answer is who held each alias then.
        verify: give a verdict on the journal. It is verified either way, and one that is broken answers
            nothing.

    Raises:
        NotFoundError: no such model, or no such alias of it.
        IntegrityError: the journal is broken.
    """
    ref = parse_ref(name)
    if isinstance(ref, AliasRef) and not ref.back and alias in {None, ref.alias}:
        name, alias = ref.name, ref.alias
    elif not isinstance(ref, NameRef | LabelRef):
        raise UsageError(
            f"{printable(name, 200)!r} is not the name of a model.", hint="Write mlx history NAME."
        )
    check_name(name)
    if alias is not None:
        check_alias(alias)
    journal = context.catalog.journal(name)
    if not journal.events:
        context.catalog.history(name)  # a model that is not there is said first
    if alias is not None:
        _refuse_unknown(context, name, alias, journal)
    outside = [one for one in context.catalog.outside(name, journal) if alias in {None, one.alias}]
    if at is None:
        result = _moves(name, alias, journal, outside, context.catalog.removal.deleted(name))
    else:
        result = _live(context, name, alias, journal, at, outside)
    return _verified(result, journal) if verify else result


def _refuse_unknown(context: Context, name: str, alias: str, journal: Journal) -> None:
    known = sorted({*journal.aliases(), *context.catalog.holders(name, journal)})
    if alias not in known:
        hint = did_you_mean(alias, known)
        held = f"Its aliases: {listed(known, 10)}." if known else "It has no alias yet."
        raise NotFoundError(
            f"No version of {name} holds the alias {alias!r}, or ever held it.",
            hint=hint or f"{held} See: mlx history {name}",
        )


def _moves(
    name: str,
    alias: str | None,
    journal: Journal,
    outside: list[Difference],
    deleted: Mapping[int, Tombstone],
) -> Result:
    events = tuple(event for event in reversed(journal.valid) if alias in {None, event.alias})
    what = f"{name}@{alias}" if alias else name
    summary = f"{counted(events)} of {what}." if events else f"No alias of {what} has moved yet."
    if outside:
        summary += f" Changed {_OUTSIDE} since: {', '.join(one.alias for one in outside)}."
    table = event_table(events, "", deleted.keys())
    active = active_rollout(journal)
    facts = [Fact("journal", f"sound: {journal_text(journal)}")] if journal.events else []
    if active and alias in {None, CANARY, active.channel}:
        facts.append(Fact("rollout", active.sentence(name)))
    named = {number for event in events for number in (event.from_version, event.to_version)}
    table = replace(table, rows=(*(_outside_row(one) for one in outside), *table.rows))
    return Result(
        command="history",
        data={
            "name": name,
            "alias": alias,
            "events": [event.document() for event in events],
            "outside": [one.document() for one in outside],
            "rollout": active.document() if active else None,
            "deleted": [stone.document() for number, stone in deleted.items() if number in named],
            "journal": _journal_document(journal),
        },
        report=Report(
            title=f"history {what}",
            summary=summary,
            facts=tuple(facts),
            sections=(table,) if table.rows else (),
            next_steps=_next_steps(name, events, outside, deleted),
        ),
        warnings=tuple(one.sentence(name) for one in outside),
    )


def _next_steps(
    name: str, events: tuple[Event, ...], outside: list[Difference], deleted: Mapping[int, Tombstone]
) -> tuple[str, ...]:
    if outside:
        return (f"mlx doctor registry {name}",)
    there = (event.to_version for event in events if event.to_version and event.to_version not in deleted)
    shown = next(there, None)
    return (f"mlx show {name}/{shown}",) if shown else (f"mlx list {name}",)


def _outside_row(one: Difference) -> tuple[str, ...]:
    """What MLflow says, in the columns of the moves: nobody knows when, who or why."""
    return (
        "-",
        "-",
        one.alias,
        holder_text(one.journal),
        holder_text(one.mlflow),
        _OUTSIDE,
        "-",
        "",
        "",
    )


def _journal_document(journal: Journal) -> dict[str, Any]:
    return {
        "sound": True,
        "events": len(journal.events),
        "moves": len(journal.valid),
        "anchor": journal.anchor.number if journal.anchor else None,
        "lag": journal.lag,
    }


def _verified(result: Result, journal: Journal) -> Result:
    lost = len(journal.events) - len(journal.valid)
    end = journal.end.number if journal.end else 0
    behind = f"{plural(journal.lag, 'event')} behind; the next move writes it" if journal.lag else ""
    checks = (
        Check(
            "chain",
            Verdict.PASS,
            f"{counted(journal.valid)}, {lost} lost against others",
            "every event as written, in its place",
            group="journal",
        ),
        Check(
            "anchor",
            Verdict.PASS,
            f"event {journal.anchor.number}" if journal.anchor else "none",
            f"event {end}, or behind",
            behind,
            group="journal",
        ),
    )
    data = {**result.data, "journal": _journal_document(journal)}
    return replace(result, data=data, report=replace(result.report, checks=checks), verdict=Verdict.PASS)


def _live(
    context: Context, name: str, alias: str | None, journal: Journal, at: str, outside: list[Difference]
) -> Result:
    now = context.clock()
    moment = parse_time(at, now=now)
    live = journal.in_force(moment, now)
    aliases = [alias] if alias else journal.aliases()
    found = [_holding(context, held, *live.get(held, (None, None))) for held in aliases]
    said = ", ".join(f"{one['alias']} was {one['shown']}" for one in found)
    tried = transition_of(live[CANARY][0]) if CANARY in live else None
    rollout = tried if tried and tried.candidate and alias in {None, CANARY, tried.channel} else None
    rows = tuple(
        (one["alias"], holder_text(one["version"]), one["label"], one["since_shown"], one["who"])
        for one in found
    )
    return Result(
        command="history",
        data={
            "name": name,
            "alias": alias,
            "at": rfc3339(moment),
            "live": {one["alias"]: one["version"] for one in found},
            "holders": [
                {key: one[key] for key in ("alias", "version", "label", "digest", "since")} for one in found
            ],
            "rollout": rollout.document() if rollout else None,
            "events": [event.document() for event, _ in live.values() if event.alias in aliases],
        },
        report=Report(
            title=f"history {name}",
            summary=f"At {both_zones(moment)} {said or f'no alias of {name} was held'}.",
            facts=(Fact("rollout", rollout.sentence(name)),) if rollout else (),
            sections=(Table("", ("alias", "version", "label", "since", "who"), rows, numeric=(1,)),)
            if rows
            else (),
            next_steps=(f"mlx history {name}",),
        ),
        warnings=tuple(one.sentence(name) for one in outside),
    )


def _holding(context: Context, alias: str, event: Event | None, since: datetime | None) -> dict[str, Any]:
    number = event.to_version if event else None
    label = _label(context, event) if event else ""
    return {
        "alias": alias,
        "version": number,
        "label": label,
        "digest": event.digest if event else "",
        "since": rfc3339(since) if since else None,
        "since_shown": both_zones(since) if since else "",
        "who": event.actor if event else "",
        "shown": f"{event.model}/{number} ({label or 'gone'})" if event and number else "nobody",
    }


def _label(context: Context, event: Event) -> str:
    """The label of the very package that was moved; empty when it is not there any more."""
    if event.to_version is None:
        return ""
    try:
        version = context.catalog.resolve(f"{event.model}/{event.to_version}")
    except NotFoundError:
        return ""
    return version.label if version.digest == event.digest else ""
