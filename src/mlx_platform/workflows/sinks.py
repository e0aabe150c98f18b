"""`mlx events status`, `test` and `retry`: where the sinks are, whether they listen, telling them again."""

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.errors import IntegrityError, UnavailableError, UsageError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.settings import SinkSettings
from mlx_platform.core.text import did_you_mean, plural, printable
from mlx_platform.registry.courier import Courier, Standing, make_sender
from mlx_platform.registry.outbox import check_sinks, trial_message, wants_model
from mlx_platform.registry.ref import check_name
from mlx_platform.workflows.context import Context

_COLUMNS = ("sink", "model", "told up to", "pending", "parked", "next try", "last error")


def chosen_sinks(context: Context, name: str | None) -> tuple[SinkSettings, ...]:
    """The sink of this name, or all of them.

    Raises:
        UsageError: there is no such sink, or none at all.
    """
    sinks = context.settings.events.sinks
    check_sinks(sinks)
    if not sinks:
        raise UsageError("No sinks are configured.", hint="Add [[events.sinks]] to mlx.toml.")
    chosen = tuple(sink for sink in sinks if name in {None, sink.name})
    if not chosen:
        known = [sink.name for sink in sinks]
        raise UsageError(
            f"There is no sink {printable(name or '', 80)!r}.", hint=did_you_mean(name or "", known)
        )
    return chosen


def check_model(context: Context, name: str | None) -> None:
    """Refuse the name of a model that is not there."""
    if name is not None:
        context.catalog.versions(check_name(name), limit=1)  # says so when there is no such model


def status(context: Context, name: str | None = None) -> Result:
    """Say where each sink is: what it was told last, what waits, and what was given up."""
    sinks = context.settings.events.sinks
    check_sinks(sinks)
    check_model(context, name)
    courier = Courier(context.settings, context.clock)
    names = (courier.models() if name is None else (name,)) if sinks else ()
    found: list[Standing] = []
    warnings = []
    for model in names:
        try:
            found += [courier.standing(sink, model) for sink in sinks if wants_model(sink, model)]
        except IntegrityError as error:
            warnings.append(error.message)
    waiting = sum(len(standing.pending) for standing in found)
    parked = sum(len(standing.cursor.parked) for standing in found)
    summary = f"{plural(len(sinks), 'sink')}, {plural(waiting, 'event')} pending, {parked} parked."
    return Result(
        command="events status",
        data={
            "sinks": [{"name": sink.name, "kind": sink.kind} for sink in sinks],
            "standings": [standing_document(standing) for standing in found],
        },
        report=Report(
            title="events",
            summary=summary if sinks else "No sinks are configured.",
            sections=(Table("", _COLUMNS, tuple(map(_row, found)), numeric=(2, 3)),) if found else (),
            next_steps=_next_steps(sinks, waiting, found),
        ),
        warnings=tuple(warnings),
    )


def try_sink(context: Context, sink: str) -> Result:
    """Tell a sink of a move that never was, signed like any other.

    Raises:
        UsageError: no such sink, or its settings or its secret cannot be used.
        UnavailableError: it did not take it.
    """
    (chosen,) = chosen_sinks(context, sink)
    sender = make_sender(chosen, os.environ, context.settings.folder)
    message = trial_message(uuid.uuid4().hex, context.actor, context.clock())
    answer = sender.send(message, timeout=chosen.timeout, now=context.clock())
    if not answer.delivered:
        raise UnavailableError(
            f"The sink {sink!r} did not take the test event: {answer.said}.", sink=sink, said=answer.said
        )
    return Result(
        command="events test",
        data={"sink": sink, "kind": chosen.kind, "id": message.id, "said": answer.said},
        report=Report(
            title=f"events test {sink}",
            summary=f"The sink {sink!r} took the test event: {answer.said}.",
            facts=(Fact("id", message.id),),
            next_steps=("mlx events status",),
        ),
    )


def retry(context: Context, sink: str, events: Sequence[str] = ()) -> Result:
    """Tell a sink again of events that were parked, or of any others.

    Args:
        context: the command's context.
        sink: the sink.
        events: `NAME/NUMBER`, or the number alone of a parked one; without any, everything that is parked.

    Raises:
        UsageError: no such sink, no such event, or its settings or its secret cannot be used.
        UnavailableError: one was not delivered.
        IntegrityError: a journal is broken, of whose model everything or an event was asked for.
    """
    (chosen,) = chosen_sinks(context, sink)
    sender = make_sender(chosen, os.environ, context.settings.folder)
    courier = Courier(context.settings, context.clock)
    parked: dict[str, tuple[int, ...]] = {}
    broken: IntegrityError | None = None
    for model in courier.models():
        try:
            if wants_model(chosen, model):
                parked[model] = courier.standing(chosen, model).cursor.parked
        except IntegrityError as error:
            broken = error  # other models must not wait until this journal is mended
    wanted = _wanted(parked, events)
    sent: list[str] = []
    failed: list[str] = []
    for model, numbers in wanted.items():
        for number, answer in courier.send_again(chosen, sender, model, numbers).items():
            if answer is None:
                raise UsageError(f"{model} has no event {number}.", hint=f"See: mlx history {model}")
            (sent if answer.delivered else failed).append(f"{model}/{number}")
            said = answer.said
    if failed:
        raise UnavailableError(
            f"{plural(len(failed), 'event')} could not be delivered to {sink!r}: {said}.",
            hint=f"Try again with: mlx events retry {sink} {' '.join(failed)}",
            delivered=sent,
            failed=failed,
        )
    if broken and not events:
        raise broken
    summary = f"{plural(len(sent), 'event')} delivered to {sink!r}." if sent else "Nothing is parked."
    return Result(
        command="events retry",
        data={"sink": sink, "delivered": sent},
        report=Report(title=f"events retry {sink}", summary=summary, next_steps=("mlx events status",)),
    )


def standing_document(standing: Standing) -> dict[str, Any]:
    """Where a sink is in a model's journal, JSON-ready."""
    cursor = standing.cursor
    return {
        "sink": standing.sink,
        "model": standing.model,
        "settled": cursor.settled,
        "pending": [event.number for event in standing.pending],
        "parked": list(cursor.parked),
        "attempts": cursor.attempts,
        "next_try": rfc3339(cursor.next_try) if cursor.next_try and standing.pending else None,
        "error": _error(standing),
    }


def _row(standing: Standing) -> tuple[str, ...]:
    cursor = standing.cursor
    at = both_zones(cursor.next_try) if cursor.next_try and standing.pending else ""
    return (
        standing.sink,
        standing.model,
        str(cursor.settled),
        str(len(standing.pending)),
        " ".join(map(str, cursor.parked)),
        at,
        _error(standing),
    )


def _error(standing: Standing) -> str:
    """The last error, while something is left that it is about."""
    return standing.cursor.error if standing.pending or standing.cursor.parked else ""


def _next_steps(sinks: Sequence[SinkSettings], waiting: int, found: Sequence[Standing]) -> tuple[str, ...]:
    if waiting:
        return ("mlx events deliver",)
    parked = next((standing for standing in found if standing.cursor.parked), None)
    if parked:
        return (f"mlx events retry {parked.sink}",)
    return (f"mlx events test {sinks[0].name}",) if sinks else ()


def _wanted(parked: Mapping[str, Sequence[int]], events: Sequence[str]) -> dict[str, list[int]]:
    if not events:
        return {model: list(numbers) for model, numbers in parked.items() if numbers}
    wanted: dict[str, list[int]] = {}
    for text in events:
        model, slash, number = text.rpartition("/")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise UsageError(
                f"{printable(text, 100)!r} is no event.", hint="Write its number, or NAME/NUMBER."
            )
        holders = [model] if slash else [name for name, numbers in parked.items() if int(number) in numbers]
        if len(holders) != 1:
            which = " and ".join(f"{name}/{number}" for name in holders)
            raise UsageError(
                f"The event {number} is parked for {which}." if which else f"No event {number} is parked.",
                hint=f"Say which one: NAME/{number}.",
            )
        wanted.setdefault(check_name(holders[0]), []).append(int(number))
    return wanted
