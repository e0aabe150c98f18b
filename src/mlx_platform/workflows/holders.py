"""Who held an alias in a span of time."""

from collections.abc import Sequence
from datetime import datetime

from mlx_platform.core.span import Span
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.ref import AliasRef, parse_ref
from mlx_platform.registry.timeline import effective_times
from mlx_platform.workflows.context import Context


def versions_in(context: Context, ref: str, span: Span) -> tuple[str, ...]:
    """The versions that held an alias at some time of a span, in that order; else the reference itself."""
    parsed = parse_ref(ref)
    if not isinstance(parsed, AliasRef) or parsed.back:
        return (ref,)
    held = _holders(context.catalog.journal(parsed.name), parsed.alias, span, context.clock())
    return tuple(f"{parsed.name}/{number}" for number in held) or (ref,)


def _holders(journal: Journal, alias: str, span: Span, now: datetime) -> Sequence[int]:
    events = journal.valid
    times = effective_times([event.time for event in events], now)
    before: list[int] = []
    within: list[int] = []
    for event, time in zip(events, times, strict=True):
        if event.alias != alias or (span.until is not None and time >= span.until):
            continue
        number = event.to_version
        if span.since is not None and time <= span.since:
            before = [number] if number else []
        elif number:
            within.append(number)
    # In the order in which each was last put there, so that the holder at the end is last.
    return tuple(reversed(dict.fromkeys(reversed([*before, *within]))))
