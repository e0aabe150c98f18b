"""What a rollout that failed leaves behind: its candidate is quarantined, and there is evidence of why.

Both come after the event of the end, by whoever wrote that. If it dies before, or the registry takes no more
than the event, any process that sees such an end makes up for it. The evidence is written last, so it says
that all is done: a quarantine that somebody has lifted since stays lifted.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.rollout import DOCUMENT, rollout_events
from mlx_platform.registry.sight import Sight
from mlx_platform.serving.rollout.carrying import quarantine
from mlx_platform.serving.rollout.lease import patience
from mlx_platform.serving.rollout.machine import Transition
from mlx_platform.serving.rollout.quarantine import QUARANTINED
from mlx_platform.serving.rollout.state import Rollout, rollout_of
from mlx_platform.serving.rollout.testimony import testimony_of
from mlx_platform.serving.rollout.verdict import Outcome, verdict_of

if TYPE_CHECKING:
    from mlx_platform.core.evidence import Evidence
    from mlx_platform.registry.catalog import Catalog

_logger = logging.getLogger(__name__)


@frozen
class Failed:
    """A rollout that failed, and as it was before its last event."""

    before: Rollout
    after: Rollout


class Aftermath:
    """Sees to it, in one process.

    Args:
        catalog: the registry.
        channel: the alias that is followed; rollouts that are meant for another one are none of ours.
        witness: keeps all of a piece of evidence about a version; returns at once.
        monotonic: a clock that never jumps.
    """

    def __init__(
        self,
        catalog: "Catalog",
        channel: str,
        witness: "Callable[[str, Evidence], None]",
        monotonic: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._channel = channel
        self._witness = witness
        self._monotonic = monotonic
        self._done = -1
        self._seen = (-1, 0.0)

    def see(self, sight: Sight) -> None:
        """Make up for what is missing once whoever wrote the end has had its time; never raises."""
        if sight.head == self._done:
            return
        failed = failed_in(sight, self._channel)
        if failed is None:
            self._done = sight.head
            return
        moment = self._monotonic()
        if self._seen[0] != sight.head:
            self._seen = (sight.head, moment)
        elif moment - self._seen[1] >= patience(failed.after.plan.look_every_s):
            self._seen = (sight.head, moment)
            if self.settle(failed):
                self._done = sight.head

    def settle(self, failed: Failed) -> bool:
        """Do what has not been done; whether nothing is missing any more. What fails is logged."""
        ref = failed.after.ref
        try:
            self._settle(failed)
        except NotFoundError:
            _logger.info("%s, which failed, is gone.", ref)
        except MlxError as error:
            _logger.warning("%s failed, and that is not kept with it yet: %s", ref, error.message)
            return False
        return True

    def keep(self, ref: str, evidence: "Evidence") -> None:
        """Keep evidence: what promotions read of it at once, and the rest when there is time for it."""
        try:
            self._catalog.summarize(self._catalog.resolve(ref), evidence)
        except MlxError as error:  # nothing depends on it here
            _logger.warning("The evidence about %s is not kept: %s", ref, error.message)
            return
        self._witness(ref, evidence)

    def _settle(self, failed: Failed) -> None:
        after = failed.after
        version = self._catalog.resolve(after.ref)
        verdict = verdict_of(after.verdicts, window=after.window)
        decided = Transition(after, ("quarantine",))
        for evidence in testimony_of(failed.before, decided, verdict, after.state_since, by_hand=False):
            known = self._catalog.evidence(version).get(evidence.kind)
            if known and known.verdict == Verdict.FAIL and _not_before(known.created, after.state_since):
                continue
            if not version.quarantined:
                quarantine(self._catalog, after)
            self._catalog.summarize(version, evidence)
            self._witness(after.ref, evidence)


def failed_in(sight: Sight, channel: str) -> Failed | None:
    """The last rollout for a channel, where it has ended because its candidate failed."""
    groups = rollout_events(sight.journal.valid)
    if not groups or len(groups[-1]) < 2:  # it began, and it ended
        return None
    documents = [(event.number, event.evidence.get(DOCUMENT) or {}) for event in groups[-1]]
    try:
        before, after = rollout_of(documents[:-1]), rollout_of(documents)
    except IntegrityError:
        return None
    if after.channel != channel or after.state not in {"ABORTED", "ROLLED_BACK"}:
        return None
    verdict = verdict_of(after.verdicts, window=after.window)
    failed = verdict is not None and verdict.outcome is Outcome.FAIL
    # Whoever finds a rollback that nobody had written down tells of no look.
    found = after.state == "ROLLED_BACK" and after.cause not in {"manual", QUARANTINED}
    return Failed(before, after) if failed or found else None


def _not_before(created: str, moment: datetime) -> bool:
    try:
        return datetime.fromisoformat(created) >= moment.replace(microsecond=0)
    except (ValueError, TypeError):
        return False
