"""Taking versions out of use: archiving keeps them and hides them, deleting takes them and their bytes away.

A deletion and a promotion of the same version may meet. The deletion announces itself on the version before
it looks who uses it; the promotion, once it is in the journal, looks whether a deletion was announced. At
least one of the two sees the other: either the deletion gives up, or the promotion goes back. An archived
version is to a promotion what an announced deletion is.
"""

import time
from collections.abc import Callable, Mapping

from mlx_platform.core.clock import Clock, rfc3339
from mlx_platform.core.errors import ConflictError, MlxError, NotFoundError
from mlx_platform.core.text import printable
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.journal import Event, Journal
from mlx_platform.registry.ledger import Ledger
from mlx_platform.registry.ref import JOURNAL_PREFIX
from mlx_platform.registry.rollout import CANARY, DOCUMENT, active_rollout
from mlx_platform.registry.tombstone import Tombstone, tombstones
from mlx_platform.registry.version import ARCHIVED, Version, model_id_of

ARCHIVED_BY = "mlx.archived_by"
ARCHIVED_REASON = "mlx.archived_reason"
ARCHIVED_AT = "mlx.archived_at"
DELETING = "mlx.deleting"
"""Set on a version while somebody deletes it: who looks now must not promote it."""

_KEPT_TARGETS = 2  # holders before the present one that a rollback can go back to
_WAIT_SECONDS = 5.0  # for a deletion that was announced to end one way or the other
_LOOK_SECONDS = 0.05


def uses_of(
    number: int,
    *,
    name: str,
    journal: Journal,
    holders: Mapping[str, int],
    mlflow: Mapping[str, int],
    sound: Callable[[int], bool],
) -> tuple[str, ...]:
    """Who needs a version, one phrase each.

    Args:
        number: the version.
        name: its model.
        journal: the model's journal.
        holders: who holds which alias.
        mlflow: the same as MLflow has it: whoever reads aliases there needs the version, too.
        sound: whether a version could be rolled back to: there, neither archived nor quarantined.
    """
    found = [f"{name}@{alias} is this version" for alias, holder in holders.items() if holder == number]
    rollout = active_rollout(journal)
    if rollout and number == rollout.stable and number not in holders.values():
        found.append(f"the rollout {rollout.id} goes back to it if {name}/{rollout.candidate} fails")
    found += [
        f"MLflow's own alias {name}@{printable(alias, 80)} is this version"
        for alias, holder in mlflow.items()
        if holder == number and holders.get(alias) != number
    ]
    for alias in holders:
        targets: list[int] = []
        for target in journal.rollback_targets(alias):
            if len(targets) < _KEPT_TARGETS and sound(target):
                targets.append(target)
        if number in targets:
            found.append(f"{name}@{alias} can be rolled back to it")
    return tuple(found)


class Removal:
    """Archives and deletes versions of one registry."""

    def __init__(self, backend: Backend, ledger: Ledger, clock: Clock) -> None:
        self._backend = backend
        self._ledger = ledger
        self._clock = clock

    def uses(self, version: Version) -> tuple[str, ...]:
        """Who needs a version.

        Raises:
            IntegrityError: the journal is broken, so nobody can tell.
        """
        name = version.name
        journal = self._ledger.journal(name)

        def sound(number: int) -> bool:
            found = self._backend.load(name, number)
            return bool(found and not found.archived and not found.quarantined)

        return uses_of(
            version.number,
            name=name,
            journal=journal,
            holders=self._ledger.holders(name, journal),
            mlflow=self._backend.reader.aliases(name),
            sound=sound,
        )

    def refuse_used(self, version: Version) -> None:
        """Refuse a version that somebody needs.

        Raises:
            ConflictError: says who needs it.
            NotFoundError: it is no longer there.
        """
        if self._backend.load(version.name, version.number) is None:
            raise NotFoundError(f"{version.ref} is no longer there.")
        uses = self.uses(version)
        if uses:
            raise ConflictError(
                f"{version.ref} is in use: {'; '.join(uses)}.", hint=self._way_out(version), uses=list(uses)
            )

    def archive(self, version: Version, *, actor: str, reason: str) -> None:
        """Mark a version as archived.

        Raises:
            ConflictError: it holds an alias, or came to hold one at the same time.
        """
        self._refuse_holder(version)
        self._mark(version, archived=True, actor=actor, reason=reason)
        try:
            self._refuse_holder(version)
        except MlxError:
            self._mark(version, archived=False, actor=actor, reason="it was promoted at the same time")
            raise

    def restore(self, version: Version, *, actor: str, reason: str) -> None:
        """Take a version out of the archive, and take back a deletion that was announced and never done."""
        self._mark(version, archived=False, actor=actor, reason=reason)

    def delete(self, version: Version, *, actor: str, reason: str) -> Tombstone:
        """Delete a version and, unless another one needs them, its bytes. Its number is never used again.

        Raises:
            ConflictError: somebody needs it.
        """
        name, number, writer = version.name, version.number, self._backend.writer
        self.refuse_used(version)
        writer.set_tags(name, number, {DELETING: rfc3339(self._clock())})
        try:
            self.refuse_used(version)
        except MlxError:
            writer.set_tags(name, number, {DELETING: ""})
            raise
        tombstone = Tombstone(
            number=number,
            label=version.label,
            digest=version.digest,
            source=version.source,
            actor=actor,
            reason=reason,
            time=rfc3339(self._clock()),
        )
        # Before the version goes: of one that is gone somebody must be able to say who deleted it.
        writer.set_model_tags(name, tombstone.as_tags())
        writer.delete_version(name, number)
        self.erase(version.source, f"{name}/{number}")
        return tombstone

    def withdraw(self, version: Version) -> None:
        """Delete a version that nobody has seen yet, with its bytes and without a trace."""
        self._backend.writer.delete_version(version.name, version.number)
        self.erase(version.source, version.ref)

    def deleted(self, name: str) -> dict[int, Tombstone]:
        """The versions of a model that were deleted, by number."""
        return tombstones(self._backend.reader.model_tags(name))

    def erase(self, source: str, ref: str) -> bool:
        """Delete the bytes of a version that is gone, unless another version needs them.

        Returns:
            Whether they may be deleted. Those of a version that plain MLflow registered belong to its run.
        """
        model = model_id_of(source)
        needed = {source, f"models:/{ref}"}
        if not model or any(
            row.source in needed and f"{row.name}/{row.number}" != ref
            for name in self._backend.reader.names()
            if not name.startswith(JOURNAL_PREFIX)
            for row in self._backend.reader.rows(name, keys=())
        ):
            return False
        self._backend.store.erase(model)
        return True

    def guard(self, version: Version, move: Callable[[Version], Event | None]) -> Event | None:
        """Move an alias to a version, and make sure that the version is there to stay.

        Raises:
            ConflictError: it is archived or being deleted, or was so at the same time and the alias is back
                where it was.
        """
        self._refuse_leaving(version)
        try:
            event = move(version)
        except NotFoundError:
            # MLflow's alias could not follow to a version that was deleted since the event was written.
            event = self._last(version)
            if event is None:
                raise
        if event is not None:
            self._confirm(event)
        return event

    def guard_rollout(self, version: Version, write: Callable[[Version], Event]) -> Event:
        """Let a rollout try a version, and make sure that the version is there to stay.

        Raises:
            ConflictError: it is archived or being deleted, or was so at the same time and the rollout ended.
        """
        self._refuse_leaving(version)
        event = write(version)
        befell = "" if event.from_version == version.number else self._befell(version.name, version.number)
        if not befell:
            return event
        reason = f"{version.ref} was {befell} at the same time"
        document = {**event.evidence[DOCUMENT], "state": "ABORTED", "cause": befell, "reason": reason}
        self._ledger.transition(
            version.name, document, candidate=None, after=event.number, actor=event.actor, reason=reason
        )
        raise ConflictError(
            f"{version.ref} was {befell} while a rollout of it started; the rollout is aborted.",
            hint=f"See: mlx history {version.name}",
        )

    def _refuse_leaving(self, version: Version) -> None:
        if version.archived:
            # Between the choice of a version and its move lies its self-check, which takes a while.
            raise ConflictError(
                f"{version.ref} is archived.", hint=f"Take it out with: mlx archive {version.ref} --undo"
            )
        if version.tags.get(DELETING):
            raise ConflictError(
                f"{version.ref} is being deleted.",
                hint=f"When nobody does, take it back with: mlx archive {version.ref} --undo",
            )

    def _last(self, version: Version) -> Event | None:
        head = self._ledger.journal(version.name).head
        return head if head and head.to_version == version.number else None

    def _confirm(self, event: Event) -> None:
        name, number = event.model, event.to_version
        befell = "" if number is None else self._befell(name, number)
        if not befell:
            return
        before = self._backend.load(name, event.from_version) if event.from_version else None
        self._ledger.move(
            name,
            event.alias,
            before,
            expect=number,
            kind="rollback",
            actor=event.actor,
            reason=f"{name}/{number} was {befell} at the same time",
            evidence={},
        )
        raise ConflictError(
            f"{name}/{number} was {befell} while it was moved to {event.alias}; the alias is back at "
            f"{before.number if before else 'nobody'}.",
            hint=f"See: mlx history {name}",
        )

    def _befell(self, name: str, number: int) -> str:
        """What was done to a version that was just promoted, once it is decided; empty when it stays."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            version = self._backend.load(name, number)
            if version is None:
                return "deleted"
            # Both look for the promotion once they are announced, and take themselves back where they see it.
            if not version.tags.get(DELETING) and not version.archived:
                return ""
            if time.monotonic() > deadline:
                return "archived" if version.archived else "deleted"
            time.sleep(_LOOK_SECONDS)

    def _mark(self, version: Version, *, archived: bool, actor: str, reason: str) -> None:
        tags = {
            ARCHIVED_BY: actor,
            ARCHIVED_REASON: reason,
            ARCHIVED_AT: rfc3339(self._clock()),
            ARCHIVED: str(archived).lower(),
        }
        if version.tags.get(DELETING) and not archived:
            tags[DELETING] = ""
        self._backend.writer.set_tags(version.name, version.number, tags)

    def _refuse_holder(self, version: Version) -> None:
        journal = self._ledger.journal(version.name)
        holders = self._ledger.holders(version.name, journal)
        held = [f"{version.name}@{alias}" for alias, number in holders.items() if number == version.number]
        rollout = active_rollout(journal)
        if rollout and rollout.stable == version.number and not held:
            held.append(f"what the rollout {rollout.id} goes back to")
        if held:
            raise ConflictError(
                f"{version.ref} is {' and '.join(held)}, so it cannot be archived.",
                hint=self._way_out(version),
            )

    def _way_out(self, version: Version) -> str:
        """How a version gets out of use."""
        name, number = version.name, version.number
        journal = self._ledger.journal(name)
        held = [alias for alias, holder in self._ledger.holders(name, journal).items() if holder == number]
        rollout = active_rollout(journal)
        if rollout and (held == [CANARY] or (not held and rollout.stable == number)):
            return f"Wait for the rollout, or end it: mlx rollout abort {name}"
        if held:
            back = "; ".join(f"mlx rollback {name}@{one}" for one in held if journal.rollback_targets(one))
            return "Promote another version first" + (f", or go back: {back}" if back else ".")
        if any(holder == number for holder in self._backend.reader.aliases(name).values()):
            return f"See what MLflow's aliases say: mlx doctor registry {name}"
        return f"Once it is archived, no rollback goes back to it: mlx archive {version.ref}"
