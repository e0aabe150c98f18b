"""`mlx history`: who moved which alias, when, from where to where, and why."""

from mlx_platform.core.clock import both_zones, parse_time, rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Report, Result, Table
from mlx_platform.core.text import plural, printable
from mlx_platform.registry.ref import AliasRef, LabelRef, NameRef, check_alias, check_name, parse_ref
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_table, holder_text


def history(context: Context, name: str, *, alias: str | None = None, at: str | None = None) -> Result:
    """Tell the moves of a model's aliases, newest first, or who held them at a moment.

    Args:
        context: the command's context.
        name: the model, or `NAME@ALIAS`.
        alias: only this one.
        at: a time with zone, or an age such as 24h; the answer is who held each alias then.

    Raises:
        NotFoundError: no such model.
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
    return _moves(context, name, alias) if at is None else _live(context, name, alias, at)


def _moves(context: Context, name: str, alias: str | None) -> Result:
    events = context.catalog.history(name, alias=alias)
    what = f"{name}@{alias}" if alias else name
    summary = f"{plural(len(events), 'move')} of {what}." if events else f"No alias of {what} has moved yet."
    return Result(
        command="history",
        data={"name": name, "alias": alias, "events": [event.document() for event in events]},
        report=Report(
            title=f"history {what}",
            summary=summary,
            sections=(event_table(events, ""),) if events else (),
            next_steps=(f"mlx show {name}/{events[0].to_version}",)
            if events
            else (f"mlx promote {name}/NUMBER --to staging",),
        ),
        warnings=context.catalog.differences(name),
    )


def _live(context: Context, name: str, alias: str | None, at: str) -> Result:
    moment = parse_time(at, now=context.clock())
    events = context.catalog.history(name, alias=alias, at=moment)
    aliases = [alias] if alias else context.catalog.journal(name).aliases()
    live = {event.alias: event.to_version for event in events}
    found = {held: live.get(held) for held in aliases}
    said = ", ".join(f"{held} was {holder_text(number)}" for held, number in found.items())
    since = {event.alias: both_zones(event.time) for event in events}
    rows = tuple((held, holder_text(number), since.get(held, "")) for held, number in found.items())
    return Result(
        command="history",
        data={
            "name": name,
            "alias": alias,
            "at": rfc3339(moment),
            "live": found,
            "events": [event.document() for event in events],
        },
        report=Report(
            title=f"history {name}",
            summary=f"At {both_zones(moment)} {said or f'no alias of {name} was held'}.",
            sections=(Table("", ("alias", "version", "since"), rows, numeric=(1,)),) if rows else (),
            next_steps=(f"mlx history {name}",),
        ),
    )
