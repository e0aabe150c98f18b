"""A candidate that somebody quarantines while it is tried: that ends the rollout, and nobody promotes it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from mlx_platform.core.errors import ConflictError, NotFoundError
from mlx_platform.core.text import printable
from mlx_platform.registry.policy import QUARANTINE
from mlx_platform.registry.version import Version
from mlx_platform.serving.rollout.machine import CONTROLLER, Production, Request, Transition, next_state
from mlx_platform.serving.rollout.state import Rollout

if TYPE_CHECKING:
    from mlx_platform.registry.catalog import Catalog

QUARANTINED = "quarantined"
"""The cause of such an end."""
_SECONDS = 2.0  # between two times that the registry is asked
_CAP = 200


class QuarantineWatch:
    """Asks for the tag of the candidate now and then: what is polled of a model has no tags of versions.

    Args:
        catalog: the registry.
        monotonic: a clock that never jumps.
    """

    def __init__(self, catalog: "Catalog", monotonic: Callable[[], float]) -> None:
        self._catalog = catalog
        self._monotonic = monotonic
        self._rollout = ""
        self._asked_at = 0.0
        self._sentence = ""

    def sentence(self, rollout: Rollout) -> str:
        """Why the candidate must not go on; empty where it may.

        Raises:
            UnavailableError: the registry is busy or cannot be reached.
        """
        moment = self._monotonic()
        if rollout.id != self._rollout or moment - self._asked_at >= _SECONDS:
            try:
                self._sentence = quarantine_of(self._catalog.resolve(rollout.ref), rollout)
            except NotFoundError:
                self._sentence = ""  # what is gone cannot be promoted anyway
            self._rollout, self._asked_at = rollout.id, moment
        return self._sentence


def quarantine_of(version: Version, rollout: Rollout) -> str:
    """Say that a candidate is quarantined; empty if it is not, or if that was let pass when all began."""
    if not version.quarantined or QUARANTINE in rollout.overridden:
        return ""
    return f"{version.ref} is quarantined: {printable(version.quarantined, _CAP).rstrip('.')}."


def refuse_quarantined(version: Version, rollout: Rollout) -> None:
    """Refuse to let a candidate go on that was quarantined meanwhile.

    Raises:
        ConflictError: says why it was.
    """
    if sentence := quarantine_of(version, rollout):
        raise ConflictError(sentence, hint=f"End the rollout with: mlx rollout abort {rollout.model}")


def quarantined(
    rollout: Rollout, sentence: str, *, now: datetime, production: Production
) -> Transition | None:
    """The end of a rollout whose candidate is quarantined; where it is promoted, it is taken back."""
    request = Request("abort", CONTROLLER, sentence)
    decided = next_state(rollout, now=now, production=production, request=request)
    if decided is None or decided.rollout.reason != sentence:
        return decided  # the alias had moved before
    return replace(decided, rollout=replace(decided.rollout, cause=QUARANTINED))
