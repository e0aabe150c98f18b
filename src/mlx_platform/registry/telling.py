"""Telling sinks of an event right after it was written: quickly, and without ever failing the writer."""

from typing import TYPE_CHECKING

from mlx_platform.core.clock import Clock

if TYPE_CHECKING:
    from mlx_platform.core.settings import Settings, SinkSettings

QUICKLY = 3.0  # seconds, for all sinks together
_REGISTRY_SECONDS = 1.0


def tell_pending(settings: "Settings", clock: Clock, name: str) -> tuple[str, ...]:
    """Try once to tell every sink of the events of a model that it has not been told of yet.

    What cannot be delivered at once stays in the outbox, which is the journal itself.

    Returns:
        One warning for each sink that is still to be told.
    """
    sinks = settings.events.sinks
    if not sinks:
        return ()
    import time

    end = time.monotonic() + QUICKLY
    warnings = []
    for index, sink in enumerate(sinks):
        seconds = (end - time.monotonic()) / (len(sinks) - index)
        try:
            # A registry that does not answer costs each sink a second, however many there are.
            trouble = (
                _deliver(settings, clock, sink, name, seconds) if seconds > 0 else "there was no time for it"
            )
        except Exception as error:  # noqa: BLE001 - it is written, and a sink cannot make that fail
            from mlx_platform.core.text import first_line

            trouble = first_line(error)
        if trouble:
            warnings.append(
                f"The sink {sink.name!r} has not been told of every move of {name} yet: {trouble}. "
                f"Deliver with: mlx events deliver {name}"
            )
    return tuple(warnings)


def _deliver(settings: "Settings", clock: Clock, sink: "SinkSettings", name: str, seconds: float) -> str:
    import os
    from dataclasses import replace

    from mlx_platform.registry.courier import Courier, make_sender
    from mlx_platform.registry.outbox import check_sinks, wants_model

    check_sinks(settings.events.sinks)
    if not wants_model(sink, name):
        return ""
    sender = make_sender(sink, os.environ, settings.folder)
    # A registry that was there a moment ago is not waited for as long as a command waits.
    registry = replace(settings.registry, timeout=min(settings.registry.timeout, _REGISTRY_SECONDS))
    courier = Courier(replace(settings, registry=registry), clock)
    done = courier.deliver(sink, sender, name, seconds=seconds, patience=seconds / 2)
    if done.standing.pending or done.parked:
        return done.standing.cursor.error or "there was no time for it"
    return ""
