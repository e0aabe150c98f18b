"""The registry as the rest of the platform sees it.

A SQLite registry and a server need the standard library only; MLflow is imported for other databases, and
for bytes and evidence that only it can write. Which version holds an alias is what the journal says; MLflow's
own alias follows.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlx_platform.core.clock import Clock, system_clock
from mlx_platform.core.errors import IntegrityError, MlxError, UsageError
from mlx_platform.core.settings import Settings
from mlx_platform.core.text import printable
from mlx_platform.registry.backend import Backend
from mlx_platform.registry.cache import FALLBACK, PackageCache
from mlx_platform.registry.difference import Difference
from mlx_platform.registry.journal import REASON_CAP, Event, Journal, Kind
from mlx_platform.registry.ledger import ANYTHING, Expected, Ledger
from mlx_platform.registry.lookup import Lookup
from mlx_platform.registry.ref import JOURNAL_PREFIX, Ref, check_alias, check_name, check_new_name, is_name
from mlx_platform.registry.registration import Registration
from mlx_platform.registry.remedies import without_bytes
from mlx_platform.registry.removal import Removal
from mlx_platform.registry.rollout import rollout_events
from mlx_platform.registry.sight import Sight
from mlx_platform.registry.version import (
    DIGEST,
    EVIDENCE_PREFIX,
    PARENT,
    QUARANTINED,
    EvidenceSummary,
    Lineage,
    ModelSummary,
    Version,
    check_lineage,
    evidence_of,
    model_id_of,
)

if TYPE_CHECKING:
    from mlx_platform.core.evidence import Evidence
    from mlx_platform.inference.package import Package
    from mlx_platform.registry.doctor import Doctor
    from mlx_platform.registry.foreign import Foreign
    from mlx_platform.registry.runs import RunRecord
    from mlx_platform.registry.selection import Asked, Selection

_MODEL_TAG_CAP = 5000  # characters; some databases take no longer tag of a model


class Catalog:
    """Models, versions, aliases and their history.

    Args:
        settings: where the registry, its bytes and the cache are.
        clock: gives the time of events.
    """

    def __init__(self, settings: Settings, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._backend = Backend(settings)
        self._ledger = Ledger(self._backend, clock)
        self._lookup = Lookup(self._backend, self._ledger)
        self.removal = Removal(self._backend, self._ledger, clock)
        self._registration = Registration(self._backend, self._lookup, self.removal)
        self._sights: dict[str, Sight] = {}
        self._cache = PackageCache(settings.path(settings.cache.dir), settings.folder / FALLBACK)

    @property
    def shown(self) -> str:
        """The registry's URI, safe to print."""
        return self._backend.shown

    def create(self) -> bool:
        """Create the registry and the folder of its bytes.

        Returns:
            Whether it was not there before.

        Raises:
            UnavailableError: it cannot be created or reached.
        """
        return self._backend.create()

    # Models and versions

    def models(self) -> tuple[ModelSummary, ...]:
        """Every model that has a version, by name; the journal and what only MLflow may name are left out.

        A model whose journal is broken is there as well, without aliases and with the problem.
        """
        reader, found = self._backend.reader, []
        for name in filter(is_name, reader.names()):
            standing = self._ledger.standing_if_known(name)
            newest = next((standing.version(row) for row in reader.rows(name, limit=1)), None)
            if newest:
                held = standing.holders
                found.append(ModelSummary(name, reader.count(name), newest, held, standing.doubt))
        return tuple(found)

    def left_out(self) -> tuple[str, ...]:
        """Names in the registry, safe to print, that no model of ours may have; not the journal's."""
        names = self._backend.reader.names()
        return tuple(
            printable(name, 80) for name in names if not is_name(name) and not name.startswith(JOURNAL_PREFIX)
        )

    def versions(self, name: str, *, alias: str | None = None, limit: int | None = 20) -> tuple[Version, ...]:
        """A model's versions, newest first, all of them without a limit; with `alias` only its holder.

        Raises:
            NotFoundError: there is no such model.
        """
        check_name(name)
        standing = self._ledger.standing(name)
        numbers = None if alias is None else [standing.holders.get(check_alias(alias), 0)]
        rows = self._backend.reader.rows(name, numbers=numbers, limit=limit)
        if not rows and not self._backend.reader.count(name):
            raise self._backend.no_model(name)
        found = (standing.version(row) for row in rows)
        return tuple(version for version in found if version)

    def select(self, name: str | None, asked: "Asked") -> "Selection":
        """The versions of a model, or of every model, that somebody asks for.

        Raises:
            NotFoundError: there is no such model.
            IntegrityError: the journal of the model that was named is broken.
        """
        from mlx_platform.registry.selection import select  # most commands look at one version

        names = [check_name(name)] if name else list(filter(is_name, self._backend.reader.names()))
        found = select(self._backend, self._ledger, names, asked)
        if name and not found.versions and not self._backend.reader.count(name):
            raise self._backend.no_model(name)
        return found

    def resolve(self, ref: str | Ref) -> Version:
        """The registered version that a reference means.

        Raises:
            NotFoundError: no such model, version, alias or label.
            UsageError: no reference, a path, or the bare name of a model.
            IntegrityError: the journal is broken, or the version is not the one that was promoted.
        """
        return self._lookup.resolve(ref)

    def holders(self, name: str, journal: Journal | None = None) -> dict[str, int]:
        """Who holds which alias of a model; whoever has its journal need not have it read again."""
        return self._ledger.holders(check_name(name), journal)

    def differences(self, name: str, alias: str | None = None) -> tuple[str, ...]:
        """Where MLflow's aliases, or one of them, are not what the journal says, one sentence each.

        Raises:
            IntegrityError: the journal is broken.
        """
        return tuple(
            difference.sentence(name)
            for difference in self.outside(name)
            if alias in {None, difference.alias}
        )

    def outside(self, name: str, journal: Journal | None = None) -> tuple[Difference, ...]:
        """What somebody did to a model's aliases outside of mlx, as far as nobody took it over since."""
        return self._ledger.differences(check_name(name), journal)

    def journal(self, name: str) -> Journal:
        """A model's journal, empty when nothing ever moved.

        Raises:
            IntegrityError: an event was changed or taken away.
        """
        return self._ledger.journal(check_name(name))

    def history(
        self, name: str, *, alias: str | None = None, at: datetime | None = None
    ) -> tuple[Event, ...]:
        """The moves that counted, newest first.

        Args:
            name: the model.
            alias: only its moves.
            at: for each alias only the move that was in force at this moment.

        Raises:
            NotFoundError: there is no such model.
        """
        journal = self.journal(name)
        if not journal.events and not self._backend.reader.count(name):
            raise self._backend.no_model(name)
        wanted = journal.aliases() if alias is None else (check_alias(alias),)
        moves = [event for event in journal.valid if event.alias in wanted]
        if at is not None:
            in_force = journal.in_force(at, self._clock()).values()
            moves = sorted(
                (event for event, _ in in_force if event.alias in wanted), key=lambda event: event.number
            )
        return tuple(reversed(moves))

    # Bytes

    def fetch(self, version: Version) -> "Package":
        """The version's package, from the cache or else from the registry, verified either way.

        A version that plain MLflow registered is made into a package on the way.

        Raises:
            UsageError: plain MLflow registered something else than an ONNX network.
            IntegrityError: bytes are missing, changed, or said to be where no package may be.
            UnavailableError: the store cannot be reached, or there is no room for the cache.
        """
        if not version.sealed:
            return self._foreign.package(version)
        cached = self._cache.find(version.digest)
        if cached:
            return cached
        try:
            return self._cache.put(version.digest, self._backend.opener(version))
        except IntegrityError as error:
            raise without_bytes(version, error) from error

    def not_adoptable(self, version: Version) -> MlxError | None:
        """Why a version of plain MLflow cannot be made into a package; None for one that perhaps can."""
        return self._foreign.problem(version)

    def take(self, uri: str, folder: Path) -> Path:
        """Copy the ONNX model of a run, at `runs:/RUN/PATH` or `models:/m-...`, into a folder that exists.

        Returns:
            The network; files that hold its tensors are beside it.

        Raises:
            NotFoundError: there is no such run or model.
            UsageError: no such URI, or no ONNX model.
            IntegrityError: bytes are missing, or said to be where no model may be read.
        """
        return self._foreign.take(uri, folder).network

    def run_of(self, uri: str) -> "RunRecord | None":
        """The run that a `runs:/` URI names; None for a URI of another kind.

        Raises:
            NotFoundError: there is no such run.
        """
        return self._foreign.run_of(uri)

    def run(self, run_id: str) -> "RunRecord | None":
        """A run of MLflow with its parameters, metrics, tags and datasets; None when it is gone."""
        return self._backend.store.run(run_id)

    def register(
        self,
        name: str,
        package: "Package",
        lineage: Lineage,
        *,
        if_exists: Literal["reuse", "fail"] = "reuse",
    ) -> tuple[Version, bool]:
        """Make a package a version of a model.

        Returns:
            The version, and whether it is new: content that is there already is not registered again.

        Raises:
            ConflictError: the content is there and `if_exists` is `fail`.
            UnavailableError: the registry is busy or cannot be reached.
            UsageError: the name, a parameter or a metric cannot be kept.
        """
        check_name(name)
        check_lineage(lineage)
        self.create()
        if not self._backend.reader.count(name):
            check_new_name(name)
        self.journal(name)  # a broken one is said before anything is written
        return self._registration.register(name, package, lineage, if_exists=if_exists)

    def same_content(self, name: str, package: "Package") -> Version | None:
        """The first version of a model that has a package's content; what `register` would find."""
        return self._registration.same_content(check_name(name), package.content_digest)

    # Moves

    def move(
        self,
        name: str,
        alias: str,
        to: int,
        *,
        expect: Expected = ANYTHING,
        kind: Kind,
        actor: str,
        reason: str = "",
        evidence: Mapping[str, Any] | None = None,
        after: int | None = None,
    ) -> Event | None:
        """Move an alias by compare-and-set.

        Args:
            name: the model.
            alias: what moves.
            to: the version that shall hold it.
            expect: the holder that the caller has seen, None for nobody; by default any.
            kind: a promotion or a rollback.
            actor: who moves it.
            reason: why.
            evidence: by kind, what the decision stands on; JSON-ready.
            after: the last event that the caller has seen: the alias must not have moved since, nor a rollout
                have gone on.

        Returns:
            The event; None when the version held the alias already.

        Raises:
            ConflictError: the alias is not where it was expected, or moved meanwhile.
            NotFoundError: there is no such version.
        """
        check_alias(alias)
        return self.removal.guard(
            self._lookup.alone(check_name(name), to),
            lambda version: self._ledger.move(
                name,
                alias,
                version,
                expect=expect,
                kind=kind,
                actor=actor,
                reason=reason,
                evidence=evidence or {},
                after=after,
            ),
        )

    # Rollouts

    def transition(
        self,
        name: str,
        document: Mapping[str, Any],
        *,
        candidate: Version | None,
        after: int | None,
        actor: str,
        reason: str = "",
    ) -> Event:
        """Write a transition of a rollout into the model's journal by compare-and-set.

        The rollout goes on, and `canary` is its candidate, until a transition without one ends it. One
        rollout of a model goes on at a time, and one that has ended stays so.

        Args:
            name: the model.
            document: what the transition says, JSON-ready. Read here are only `id`, `channel`, `stable`, and
                for people `state`, `step`, `weight`, `shadow` and `cause`.
            candidate: the version that is tried; None ends the rollout.
            after: the last event that the caller has seen, such as `Sight.head`. Since then nobody may have
                moved the channel's alias or written another transition; other aliases do not matter. None
                when nothing that happened since matters.
            actor: who decided.
            reason: why.

        Raises:
            ConflictError: somebody was faster, another rollout goes on, this one has ended, or its candidate
                is archived or deleted.
            NotFoundError: the candidate is not there.
        """
        check_name(name)
        if candidate is None:
            return self._ledger.transition(
                name, document, candidate=None, after=after, actor=actor, reason=reason
            )
        return self.removal.guard_rollout(
            self._lookup.alone(name, candidate.number),
            lambda version: self._ledger.transition(
                name, document, candidate=version, after=after, actor=actor, reason=reason
            ),
        )

    def rollouts(self, name: str) -> tuple[tuple[Event, ...], ...]:
        """The transitions of each rollout of a model, oldest first; the first rollout comes first.

        Raises:
            IntegrityError: the journal is broken.
        """
        return rollout_events(self.journal(name).valid)

    def sight(self, name: str) -> Sight:
        """What somebody who follows a model looks at: holders, tags and journal, at the price of a glance.

        The journal is read only where it has grown since this catalog looked last. A model that is not there
        has nothing of it.

        Raises:
            IntegrityError: the journal is broken.
            UnavailableError: the registry is busy or cannot be reached.
        """
        before = self._sights.get(check_name(name))
        self._sights[name] = found = self._ledger.sight(name, before.journal if before else None)
        return found

    def set_model_tags(self, name: str, tags: Mapping[str, str]) -> None:
        """Write tags of a model over what they were.

        Raises:
            NotFoundError: there is no such model.
            UsageError: one is longer than every database keeps it.
        """
        long = next((key for key, value in tags.items() if len(value) > _MODEL_TAG_CAP), None)
        if long is not None:
            raise UsageError(f"The tag {long!r} of {name} has more than {_MODEL_TAG_CAP:,} characters.")
        self._backend.writer.set_model_tags(check_name(name), tags)

    def delete_model_tags(self, name: str, keys: Collection[str]) -> None:
        """Take tags of a model away; one that is not there is as good.

        Raises:
            NotFoundError: there is no such model.
        """
        self._backend.writer.delete_model_tags(check_name(name), keys)

    def quarantine(self, version: Version, reason: str) -> None:
        """Keep a version from every alias, until somebody lets it pass by name and with a reason.

        A rollback passes over it, a promotion and a rollout refuse it.
        """
        self.set_tags(version, {QUARANTINED: reason.strip()[:REASON_CAP] or "no reason given"})

    # Among versions

    def children(self, version: Version) -> tuple[str, ...]:
        """The versions of the same model that were made from a version, oldest first."""
        found = self._backend.reader.tagged(version.name, PARENT, version.ref)
        return tuple(f"{version.name}/{number}" for number in sorted(found))

    def settle(self, name: str, alias: str) -> None:
        """Make MLflow's alias follow the journal, where a writer died or somebody moved it outside of mlx.

        Raises:
            NotFoundError: the version that holds the alias is not there any more.
        """
        self._ledger.settle(check_name(name), alias)

    # Evidence

    def record(self, version: Version, evidence: "Evidence") -> None:
        """Keep evidence with the version it is about.

        Raises:
            IntegrityError: it is about another digest.
        """
        import orjson

        from mlx_platform.registry.findings import data_of, metrics_of

        _check_subject(version, evidence)
        run_id = self._backend.store.log_finding(
            f"{evidence.kind} {version.ref}",
            model=model_id_of(version.source),
            metrics=metrics_of(evidence.numbers),
            data=data_of(evidence),
            document=orjson.dumps(evidence.document(), option=orjson.OPT_INDENT_2).decode(),
            tags={"mlx.evidence": evidence.kind, "mlx.version": version.ref, DIGEST: version.digest},
        )
        self._summarize(version, evidence, run_id)

    def summarize(self, version: Version, evidence: "Evidence") -> None:
        """Keep what promotions read of evidence, by one write; `record` keeps all of it, and takes its time.

        Raises:
            IntegrityError: it is about another digest.
        """
        _check_subject(version, evidence)
        self._summarize(version, evidence, "")

    def evidence(self, version: Version) -> Mapping[str, EvidenceSummary]:
        """The latest evidence of each kind about the version's digest, read anew."""
        return evidence_of(self._lookup.get(version.name, version.number))

    def set_tags(self, version: Version, tags: Mapping[str, str]) -> None:
        """Write tags of a version; each is a write of its own."""
        self._backend.writer.set_tags(version.name, version.number, tags)

    # Health

    @cached_property
    def doctor(self) -> "Doctor":
        """Looks for what is wrong with the registry."""
        from mlx_platform.registry.doctor import Doctor

        return Doctor(self._backend, self._ledger)

    # Within

    def _summarize(self, version: Version, evidence: "Evidence", run_id: str) -> None:
        from mlx_platform.registry.findings import summary_tag

        self.set_tags(version, {EVIDENCE_PREFIX + evidence.kind: summary_tag(evidence, run_id)})

    @cached_property
    def _foreign(self) -> "Foreign":
        from mlx_platform.registry.foreign import Foreign

        return Foreign(self._backend, self._cache)


def _check_subject(version: Version, evidence: "Evidence") -> None:
    if evidence.digest != version.digest:
        raise IntegrityError(f"The evidence is about {evidence.digest}, not about {version.ref}.")
