"""Carrying out what was decided: the transition's event, and the moves and marks that belong to it.

The order makes every moment safe to die in. Traffic goes back before that is written down; it goes on to the
candidate only after; and whoever comes next finds the rest to do in the journal: a promotion that was
decided, or, in `aftermath`, what a failure leaves behind.
"""

import logging
from typing import TYPE_CHECKING, Any

from mlx_platform.core.errors import ConflictError, MlxError
from mlx_platform.registry.journal import REASON_CAP, Event
from mlx_platform.registry.rollout import CANARY, DOCUMENT, active_rollout, rollout_events
from mlx_platform.registry.sight import Sight
from mlx_platform.serving.rollout.machine import Production, Transition
from mlx_platform.serving.rollout.quarantine import QUARANTINED, refuse_quarantined
from mlx_platform.serving.rollout.state import Rollout, rollout_of

if TYPE_CHECKING:
    from mlx_platform.registry.catalog import Catalog

_logger = logging.getLogger(__name__)


def rollout_in(sight: Sight) -> Rollout | None:
    """The rollout that goes on now.

    Raises:
        IntegrityError: there is one, and nobody can understand it.
    """
    active = active_rollout(sight.journal)
    if active is None:
        return None
    for events in rollout_events(sight.journal.valid):
        found = [(event.number, event.evidence.get(DOCUMENT) or {}) for event in events]
        if found[0][1].get("id") == active.id:
            return rollout_of(found)
    return None


def production_in(sight: Sight, channel: str) -> Production:
    """Who holds a channel, and which rollout moved it there."""
    holder, last = sight.holders.get(channel), sight.journal.last(channel)
    moved_by = last.evidence.get(DOCUMENT) if last else None
    if last is None or not isinstance(moved_by, str):
        return Production(holder)
    return Production(holder, moved_by, str(last.evidence.get("cause", "")), last.reason, last.actor)


def carry_out(catalog: "Catalog", transition: Transition, *, after: int) -> Event:
    """Write a transition, and do what belongs to it.

    Args:
        catalog: the registry.
        transition: what was decided.
        after: the last event that was seen when it was, such as `Sight.head`.

    Raises:
        ConflictError: somebody was faster or has quarantined the candidate, so nothing was done.
        UnavailableError: the registry is busy or cannot be reached; perhaps it was done all the same.
    """
    rollout = transition.rollout
    # An end needs no candidate: it must be possible although somebody has deleted it.
    candidate = catalog.resolve(rollout.ref) if rollout.active else None
    if candidate is not None and rollout.state in {"SHADOW", "STEP", "PROMOTING"}:
        refuse_quarantined(candidate, rollout)
    reason = rollout.reason[:REASON_CAP]
    if "roll_back" in transition.effects:
        moved = catalog.move(
            rollout.model,
            rollout.channel,
            rollout.stable,
            expect=rollout.candidate,
            kind="rollback",
            actor=rollout.actor,
            reason=reason,
            evidence={DOCUMENT: rollout.id, "cause": rollout.cause},
            after=after,
        )
        after = moved.number if moved else after
    try:
        event = catalog.transition(
            rollout.model,
            rollout.document(),
            candidate=candidate,
            after=after,
            actor=rollout.actor,
            reason=reason,
        )
    except ConflictError:
        done = catalog.journal(rollout.model).last(CANARY) if "roll_back" in transition.effects else None
        if done is None or _state(done) != (rollout.id, rollout.state):
            raise
        event = done  # whoever leads has seen the move, and said so first
    if "promote" in transition.effects:
        promote(catalog, rollout, after=event.number)
    if "quarantine" in transition.effects and rollout.cause != QUARANTINED:
        try:
            quarantine(catalog, rollout)
        except MlxError as error:  # it gets no traffic, and a server makes up for it
            _logger.warning("%s is not marked as quarantined: %s", rollout.ref, error.message)
    return event


def quarantine(catalog: "Catalog", rollout: Rollout) -> None:
    """Mark the candidate of a rollout that failed.

    Raises:
        NotFoundError: it is gone.
        UnavailableError: the registry is busy or cannot be reached.
    """
    catalog.quarantine(catalog.resolve(rollout.ref), f"Rollout {rollout.id}: {rollout.reason}")


def advanced(sight: Sight, rollout: Rollout) -> bool:
    """Whether somebody let a rollout go past one of its steps."""
    documents = (event.evidence.get(DOCUMENT) for event in sight.journal.valid if event.kind == "rollout")
    said = (document for document in documents if isinstance(document, dict))
    return any((document.get("id"), document.get("cause")) == (rollout.id, "advanced") for document in said)


def _state(event: Event) -> tuple[object, object]:
    """The rollout and the state that a transition says."""
    document = event.evidence.get(DOCUMENT)
    return (document.get("id"), document.get("state")) if isinstance(document, dict) else (None, None)


def promote(catalog: "Catalog", rollout: Rollout, *, after: int) -> Event | None:
    """Move the channel to the candidate of a rollout that is PROMOTING; None when it is there already.

    Raises:
        ConflictError: somebody moved it, ended the rollout after that event, or quarantined the candidate.
        UnavailableError: the registry is busy or cannot be reached.
    """
    refuse_quarantined(catalog.resolve(rollout.ref), rollout)
    return catalog.move(
        rollout.model,
        rollout.channel,
        rollout.candidate,
        expect=rollout.stable,
        kind="promote",
        actor=rollout.actor,
        reason=rollout.reason[:REASON_CAP],
        evidence=_standing_on(rollout),
        after=after,
    )


def _standing_on(rollout: Rollout) -> dict[str, Any]:
    """What a promotion stands on: the rollout, and what was let pass by hand when that began."""
    by_hand = {"overridden": list(rollout.overridden)} if rollout.overridden else {}
    return {DOCUMENT: rollout.id} | by_hand
