"""`mlx events deliver`: tell the sinks of every move that they have not been told of yet."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from mlx_platform.core.errors import IntegrityError, MlxError, UnavailableError, UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.settings import SinkSettings
from mlx_platform.core.text import plural
from mlx_platform.registry.courier import Courier, Delivery, make_sender
from mlx_platform.registry.outbox import Sender, wants_model
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.sinks import check_model, chosen_sinks, standing_document

Say = Callable[[str], None]
Pair = tuple[str, str]


class _Rounds:
    """Rounds over every sink and model, and what came of them together.

    `broken` are the journals that cannot be read, by model; `silent` says by sink why it was told nothing.
    """

    def __init__(self, context: Context, sinks: Sequence[SinkSettings], name: str | None) -> None:
        self._context = context
        self._sinks = sinks
        self._name = name
        self._senders: dict[str, Sender] = {}
        self._unusable: dict[str, MlxError] = {}
        for sink in sinks:
            try:
                self._senders[sink.name] = make_sender(sink, os.environ, context.settings.folder)
            except UsageError as error:
                self._unusable[sink.name] = error  # other sinks must not wait until it has its secret
        self._courier = Courier(context.settings, context.clock)
        self.broken: dict[str, IntegrityError] = {}
        self.silent: dict[str, MlxError] = {}

    @property
    def useless(self) -> MlxError | None:
        """Why no sink at all can be told anything."""
        return None if self._senders else next(iter(self._unusable.values()))

    @property
    def errors(self) -> tuple[MlxError, ...]:
        """What went wrong beside the sinks' own answers."""
        return (*self.silent.values(), *self.broken.values())

    def go(self, *, eager: bool = False) -> dict[Pair, Delivery]:
        """One round: what came of it for each sink and model."""
        found: dict[Pair, Delivery] = {}
        names = self._courier.models() if self._name is None else (self._name,)
        self.silent = dict(self._unusable)
        for sink in self._sinks:
            if sink.name not in self._senders:
                continue
            try:
                self._tell(sink, [name for name in names if wants_model(sink, name)], found, eager=eager)
            except UnavailableError as error:
                # Another process is at this sink, which is nothing to the others.
                self.silent[sink.name] = type(error)(f"{sink.name}: {error.message}", hint=error.hint)
        return found

    def _tell(
        self, sink: SinkSettings, names: Sequence[str], found: dict[Pair, Delivery], *, eager: bool
    ) -> None:
        for name in names:
            try:
                now = self._courier.deliver(sink, self._senders[sink.name], name, eager=eager)
            except IntegrityError as error:
                # Other models must not wait until this journal is mended.
                self.broken[name] = error
                continue
            self.broken.pop(name, None)
            found[sink.name, name] = now


def deliver(
    context: Context,
    name: str | None = None,
    *,
    sink: str | None = None,
    wait: float = 30.0,
    now: bool = False,
) -> Result:
    """Tell the sinks of every move that they have still to be told of.

    Args:
        context: the command's context.
        name: only this model.
        sink: only this sink.
        wait: seconds to wait for the next attempt at what failed.
        now: try at once what failed before, without waiting for its time.

    Raises:
        UsageError: no such sink, or the settings or the secret of one cannot be used; the others were told.
        UnavailableError: something is left or had to be parked, another process is at a sink, or the registry
            cannot be reached.
        IntegrityError: a journal is broken; of its model nothing is told.
    """
    sinks = chosen_sinks(context, sink)
    check_model(context, name)
    rounds = _Rounds(context, sinks, name)
    end = time.monotonic() + wait
    with context.progress.stage("delivering events"):
        done = rounds.go(eager=now)
        while (pause := _pause(done, context.clock())) is not None and time.monotonic() + pause <= end:
            time.sleep(pause)
            done = _together(done, rounds.go())
    return _delivered(done, rounds.errors)


def watch(
    context: Context, name: str | None = None, *, sink: str | None = None, every: float, say: Say
) -> None:
    """Deliver until Ctrl-C; `say` hears what is delivered and what goes wrong, each trouble once.

    Raises:
        UsageError: no such sink, or none whose settings and secret can be used.
    """
    sinks = chosen_sinks(context, sink)
    check_model(context, name)
    rounds = _Rounds(context, sinks, name)
    if rounds.useless:
        raise rounds.useless
    troubles: set[str] = set()
    while True:
        try:
            found = rounds.go()
            news = [text for now in found.values() if (text := _news(now))]
            fresh = {error.message for error in rounds.errors}
            fresh |= {text for now in found.values() if (text := _trouble(now))}
        except UnavailableError as error:
            news, fresh = [], {error.message}
        for text in (*news, *sorted(fresh - troubles)):
            say(text)
        troubles = fresh
        time.sleep(every)


def _together(before: Mapping[Pair, Delivery], after: Mapping[Pair, Delivery]) -> dict[Pair, Delivery]:
    found = dict(before)
    for pair, now in after.items():
        then = found.get(pair, Delivery(now.standing))
        found[pair] = Delivery(now.standing, then.delivered + now.delivered, then.parked + now.parked)
    return found


def _pause(left: Mapping[Pair, Delivery], moment: datetime) -> float | None:
    times = [now.standing.cursor.next_try for now in left.values() if now.standing.pending]
    waits = [(time_ - moment).total_seconds() for time_ in times if time_]
    return max(0.01, min(waits)) if waits else None


def _delivered(done: Mapping[Pair, Delivery], errors: Sequence[MlxError]) -> Result:
    documents = [
        {
            **standing_document(one.standing),
            "delivered": list(one.delivered),
            "newly_parked": list(one.parked),
        }
        for one in done.values()
    ]
    failed = [one for one in done.values() if one.standing.pending or one.parked]
    if failed:
        errors = (*errors, _failed(failed))
    count = sum(len(one.delivered) for one in done.values())
    if errors:
        told = f" {plural(count, 'event')} delivered to the rest." if count else ""
        raise type(errors[0])(
            " ".join(error.message for error in errors) + told,
            hint=errors[0].hint,
            **{**errors[0].details, "deliveries": documents},
        )
    parked = sum(len(one.standing.cursor.parked) for one in done.values())
    summary = f"{plural(count, 'event')} delivered." if count else "Nothing was left to deliver."
    return Result(
        command="events deliver",
        data={"deliveries": documents},
        report=Report(title="events deliver", summary=summary, next_steps=("mlx events status",)),
        warnings=(f"{plural(parked, 'event')} parked; see: mlx events status",) if parked else (),
    )


def _failed(failed: Sequence[Delivery]) -> UnavailableError:
    count = sum(len(one.standing.pending) + len(one.parked) for one in failed)
    standing = failed[0].standing
    said = standing.cursor.error or "it waits for another attempt"
    return UnavailableError(
        f"{plural(count, 'event')} could not be delivered. {standing.sink}, {standing.model}: {said}.",
        hint="See: mlx events status",
    )


def _news(now: Delivery) -> str:
    numbers = ", ".join(map(str, now.delivered))
    return f"{now.standing.sink} was told of {now.standing.model}: event {numbers}" if numbers else ""


def _trouble(now: Delivery) -> str:
    sink, model, error = now.standing.sink, now.standing.model, now.standing.cursor.error
    if now.parked:
        numbers = ", ".join(map(str, now.parked))
        return f"{sink} did not take {model}: event {numbers} is parked: {error}"
    return f"{sink} does not take {model}: {error}" if now.standing.pending else ""
