"""A rollout as the registry shows it at a moment: its events, what servers count, and the last look."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from mlx_platform.core.errors import NotFoundError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.journal import Event
from mlx_platform.registry.ref import check_name
from mlx_platform.registry.rollout import DOCUMENT, rollout_events
from mlx_platform.registry.sight import Sight
from mlx_platform.serving.rollout.counts import Window
from mlx_platform.serving.rollout.lease import LEASE, Lease
from mlx_platform.serving.rollout.publication import Published, added_up, last_look, published
from mlx_platform.serving.rollout.state import Rollout, rollout_of
from mlx_platform.serving.rollout.verdict import Outcome, StepVerdict
from mlx_platform.workflows.context import Context

ENDED_CODES = {"ABORTED": 6, "ROLLED_BACK": 6, "SUPERSEDED": 4}
_VERDICTS = {
    "PROMOTED": Verdict.PASS,
    "COMPLETED": Verdict.PASS,
    "ABORTED": Verdict.FAIL,
    "ROLLED_BACK": Verdict.FAIL,
    "SUPERSEDED": Verdict.UNDECIDED,
}
_OUTCOMES = {
    Outcome.PASS: Verdict.PASS,
    Outcome.FAIL: Verdict.FAIL,
    Outcome.ERROR: Verdict.ERROR,
    Outcome.NO_DATA: Verdict.UNDECIDED,
    Outcome.INCONCLUSIVE: Verdict.UNDECIDED,
}


@frozen
class Seen:
    """A rollout at a moment.

    Attributes:
        rollout: as its last event says.
        events: all of its transitions, oldest first.
        look: the last one, if a server left it; of another window it says nothing of this one.
        processes: what those say that take part.
        window: what they counted together.
        leader: who leads, by the lease; "" where nobody holds one.
        sight: the model at that moment.
        now: the moment.
    """

    rollout: Rollout
    events: tuple[Event, ...]
    look: StepVerdict | None
    processes: tuple[Published, ...]
    window: Window
    leader: str
    sight: Sight
    now: datetime

    @property
    def timed_pause(self) -> bool:
        """Whether it is paused by its plan, and goes on by itself."""
        rollout = self.rollout
        return rollout.state == "PAUSED" and rollout.cause == "step" and self.resumes is not None

    @property
    def resumes(self) -> datetime | None:
        """When a planned pause is over."""
        rollout = self.rollout
        if rollout.state != "PAUSED" or rollout.at.kind != "pause" or rollout.at.max_duration_s is None:
            return None
        return rollout.state_since + timedelta(seconds=rollout.at.max_duration_s)

    @property
    def settled(self) -> bool:
        """Whether nothing more happens until somebody does something."""
        return not self.rollout.active or (self.rollout.state == "PAUSED" and not self.timed_pause)

    @property
    def verdict(self) -> Verdict | None:
        """What a command that ends here says; None while it goes on."""
        if not self.settled:
            return None
        return _VERDICTS.get(self.rollout.state, Verdict.UNDECIDED)

    @property
    def code(self) -> int | None:
        """The exit code where the verdict does not say it."""
        return ENDED_CODES.get(self.rollout.state)


def verdict_of_outcome(outcome: Outcome) -> Verdict:
    """What a metric of a look is in the words of every other check."""
    return _OUTCOMES[outcome]


def see(context: Context, name: str, rollout: str | None = None) -> Seen:
    """Look at the last rollout of a model, or at one of them.

    Raises:
        NotFoundError: there is no such model or rollout.
        IntegrityError: the journal is broken, or another version of mlx wrote the rollout.
    """
    sight = context.catalog.sight(check_name(name))
    groups = rollout_events(sight.journal.valid)
    if not groups:
        context.catalog.versions(name, limit=1)  # a model that is not there is said first
        raise NotFoundError(
            f"There was never a rollout of {name}.", hint=f"Start one with: mlx rollout start {name}/NUMBER"
        )
    events = groups[-1] if rollout is None else _chosen(groups, name, rollout)
    found = read(events)
    processes = published(sight.tags, found.id)
    look = last_look(sight.tags, found.id)
    lease = Lease.decode(sight.tags.get(LEASE, ""))
    return Seen(
        rollout=found,
        events=events,
        look=look if look and look.window == found.window else None,
        processes=processes,
        window=added_up(processes, found.window),
        leader=lease.holder if lease and lease.rollout == found.id else "",
        sight=sight,
        now=context.clock(),
    )


def read(events: Sequence[Event]) -> Rollout:
    """The rollout that its events tell."""
    return rollout_of((event.number, document_of(event)) for event in events)


def document_of(event: Event) -> dict[str, Any]:
    """What a transition says; empty where it cannot be read."""
    found = event.evidence.get(DOCUMENT)
    return dict(found) if isinstance(found, dict) else {}


def _chosen(groups: Sequence[tuple[Event, ...]], name: str, wanted: str) -> tuple[Event, ...]:
    ids = {str(document_of(group[0]).get("id", "")): group for group in groups}
    if wanted in ids:
        return ids[wanted]
    found = [group for known, group in ids.items() if wanted and known.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    problem = "is no rollout" if not found else "are several rollouts"
    raise NotFoundError(
        f"There {problem} of {name} with an id that begins with {printable(wanted, 80)!r}.",
        hint=f"See: mlx rollout history {name}",
    )
