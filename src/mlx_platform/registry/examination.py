"""What must be true of a registry, held against what is there: findings, and what would put them right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, Literal

from mlx_platform.core.clock import both_zones
from mlx_platform.core.text import listed, plural, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.registry.damage import Damage, damage_of
from mlx_platform.registry.difference import compare
from mlx_platform.registry.examined import Examined
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.ref import is_alias
from mlx_platform.registry.remedies import holder_remedy, journal_remedy
from mlx_platform.registry.rollout import CANARY, TAG_PREFIX, active_rollout, counted
from mlx_platform.registry.version import DIGEST, LABEL, UNKNOWN_TIME, Version

Repair = Literal["", "alias", "anchor", "label", "registration", "folder", "rollout"]
_MOST_PROBLEMS = 20
_CLOCKS = timedelta(minutes=5)  # clocks that differ by less do not disagree


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer about one thing.

    Attributes:
        check: what was asked, such as `journal`.
        subject: what it was asked about: a model, `NAME@ALIAS`, a version, a folder.
        sound: whether it is as it must be. What is only worth knowing is sound, and has a `note`.
        measured: what is there.
        expected: what must be there.
        note: a sentence for people.
        command: what deals with it.
        repair: what kind of repair puts it right; empty for none.
    """

    check: str
    subject: str
    sound: bool
    measured: str
    expected: str
    note: str = ""
    command: str = ""
    repair: Repair = ""

    def as_check(self) -> Check:
        """The finding as a line of a verdict table."""
        return Check(
            name=f"{self.check} {self.subject}",
            verdict=Verdict.PASS if self.sound else Verdict.FAIL,
            measured=self.measured,
            threshold=self.expected,
            message=self.note,
            group="registry",
        )

    def document(self) -> dict[str, Any]:
        """The finding, JSON-ready."""
        return {
            "check": self.check,
            "subject": self.subject,
            "sound": self.sound,
            "measured": self.measured,
            "expected": self.expected,
            "note": self.note,
            "command": self.command,
            "repairable": bool(self.repair),
        }


def examine_model(model: Examined, now: datetime) -> Iterator[Finding]:
    """Everything that the registry's rows alone can tell about a model."""
    if model.journal.end or model.journal.problems:
        yield from _journal(model, now)
    if not model.journal.problems:
        yield from _aliases(model)
        yield from _holders(model)
        yield from _rollout(model)
    yield from _versions(model)


def _journal(model: Examined, now: datetime) -> Iterator[Finding]:
    journal, name = model.journal, model.name
    for problem in journal.problems[:_MOST_PROBLEMS]:
        yield Finding(
            "journal",
            name,
            sound=False,
            measured=printable(problem, 200),
            expected="unbroken",
            note="Somebody changed the journal or its anchor in MLflow. Restore it from a backup.",
            command=journal_remedy(name),
        )
    if journal.problems:
        return
    lost = len(journal.events) - len(journal.valid)
    yield Finding(
        "journal",
        name,
        sound=True,
        measured=journal_text(journal),
        expected="unbroken",
        note=f"{plural(lost, 'event')} lost against others at the same time." if lost else "",
    )
    if journal.lag:
        yield Finding(
            "anchor",
            name,
            sound=True,
            measured=f"{plural(journal.lag, 'event')} behind",
            expected="at the last event, or behind",
            note=f"The anchor of {name} does not cover its newest moves yet; the next move writes it.",
            command=f"mlx doctor registry {name} --repair",
            repair="anchor",
        )
    early = [event for event in journal.valid if event.time - now > _CLOCKS]
    if early:
        numbers = listed([str(event.number) for event in early], 5)
        yield Finding(
            "clock",
            name,
            sound=True,
            measured=f"event {numbers} at {both_zones(early[0].time)}",
            expected="none after now",
            note=f"The clock of {printable(early[0].actor, 80)} or of this machine was wrong; what was live "
            "around that time cannot be told exactly.",
        )


def _aliases(model: Examined) -> Iterator[Finding]:
    name, journal = model.name, model.journal
    differences = compare(journal, model.aliases)
    taken = CANARY if active_rollout(journal) else None
    for one in differences:
        subject = f"{name}@{one.alias}"
        # Where nobody ever used mlx, MLflow's word is the only one, and nothing is wrong.
        sound = not one.seen and not model.ours
        yield Finding(
            "alias",
            subject,
            sound=sound,
            measured=f"MLflow: {one.mlflow or 'nobody'}",
            expected=f"journal: {one.journal or 'nobody'}" if one.seen else "a move in the journal",
            note=one.sentence(name) if sound else "Somebody changed it outside of mlx.",
            # What a rollout has taken is no matter of adopting.
            command=f"mlx doctor registry {name} "
            + ("--repair" if one.alias == taken else f"--adopt {subject}"),
            repair="alias" if one.seen else "",
        )
    told = {one.alias for one in differences}
    held = [(alias, journal.holder(alias)) for alias in journal.aliases() if alias not in told]
    if held:
        yield Finding(
            "alias",
            name,
            sound=True,
            measured=", ".join(f"{alias} {number or 'nobody'}" for alias, number in held),
            expected="as in the journal",
        )
    others = [alias for alias in model.aliases if not is_alias(alias)]
    if others:
        yield Finding(
            "alias",
            name,
            sound=True,
            measured=listed(others, 5),
            expected="names that an alias of ours may have",
            note=f"Only MLflow can use these aliases of {name}: {listed(others, 5)}.",
        )


def _holders(model: Examined) -> Iterator[Finding]:
    journal = model.journal
    holders = {alias: number for alias, number in model.aliases.items() if is_alias(alias)}
    holders |= {alias: holder for alias in journal.aliases() if (holder := journal.holder(alias))}
    for alias, number in sorted(holders.items()):
        if alias in journal.aliases() and journal.holder(alias) is None:
            continue
        version, last = model.version(number), journal.last(alias)
        if last and last.kind == "rollout":
            continue  # it is tried, and holds nothing yet
        problem, note, expected = "", "", "a sound version"
        if version is None:
            problem, note = f"{model.name}/{number} is not there", "Its version was deleted outside of mlx."
        elif last and last.digest != version.digest:
            problem = f"digest {version.digest or 'none'}"
            note, expected = f"{version.ref} is not what was moved to {alias}.", f"digest {last.digest}"
        elif version.quarantined and not (last and _by_hand(last.evidence)):
            problem, note = "quarantined", f"{version.ref}: {printable(version.quarantined, 200)}"
        elif version.archived:
            problem, note = "archived", f"{version.ref} was put away and is still in use."
        if problem:
            yield Finding(
                "holder",
                f"{model.name}@{alias}",
                sound=False,
                measured=problem,
                expected=expected,
                note=note,
                command=holder_remedy(model, alias),
            )


def _rollout(model: Examined) -> Iterator[Finding]:
    """The rollout that goes on, and what one that has ended left behind."""
    name, active = model.name, active_rollout(model.journal)
    left = [key for key in model.tags if key.startswith(TAG_PREFIX)]
    if active is None:
        if left:
            yield Finding(
                "rollout",
                name,
                sound=True,
                measured=f"{plural(len(left), 'tag')} and no rollout",
                expected="nothing once it has ended",
                note=f"A server did not tidy up behind a rollout of {name} that has ended.",
                command=f"mlx doctor registry {name} --repair",
                repair="rollout",
            )
        return
    version, last = model.version(active.candidate), model.journal.last(CANARY)
    holder, problem, note = model.journal.holder(active.channel), "", active.sentence(name)
    if version is None:
        problem, note = f"{name}/{active.candidate} is not there", "Its candidate was deleted outside of mlx."
    elif last and last.digest != version.digest:
        problem, note = f"digest {version.digest or 'none'}", f"{version.ref} is not what the rollout tries."
    elif version.archived:
        problem, note = "archived", f"{version.ref} was put away and is still tried."
    elif holder is not None and holder not in {active.stable, active.candidate}:
        note += f" {name}@{active.channel} is {holder} meanwhile, and no server has said that it knows."
    yield Finding(
        "rollout",
        name,
        sound=not problem,
        measured=problem or active.phrase,
        expected="a candidate that is there",
        note=note,
        command=f"mlx rollout abort {name}" if problem else f"mlx rollout status {name}",
    )


def _by_hand(evidence: Mapping[str, Any]) -> bool:
    """Whether somebody let the quarantine pass on purpose."""
    lifted = evidence.get("overridden")
    return isinstance(lifted, list) and "quarantine" in lifted


def _versions(model: Examined) -> Iterator[Finding]:
    name = model.name
    for version in model.versions:
        if version.number < 1 or version.created == UNKNOWN_TIME:
            what = f"number {version.number}" if version.number < 1 else "a time that is none"
            yield Finding(
                "version", version.ref, sound=False, measured=what, expected="what a registry writes"
            )
    for version in model.versions:
        yield from map(_damaged, repeat(version), damage_of(version))
    plain = [version for version in model.versions if not version.sealed and not version.stripped]
    if plain:
        refs = listed([version.ref for version in plain], 5)
        yield Finding(
            "digest",
            name,
            sound=True,
            measured=f"{plural(len(plain), 'version')} without one",
            expected="a digest on each version",
            note=f"Not registered with mlx, so nothing can be proved about: {refs}.",
            command=f"mlx adopt {plain[0].ref}",
        )
    for version in model.versions:
        alias = version.stage.lower()
        if alias in {"staging", "production"} and not {alias, *version.aliases} & model.aliases.keys():
            yield Finding(
                "stage",
                version.ref,
                sound=True,
                measured=f"MLflow stage {version.stage}",
                expected=f"the alias {alias}",
                note=f"{version.ref} has the stage {version.stage} of older MLflow; mlx does not follow it.",
                command=f"mlx promote {version.ref} --to {alias}"
                if version.sealed
                else f"mlx adopt {version.ref}",
            )
    unnamed = [version for version in model.versions if version.sealed and LABEL not in version.tags]
    for version in unnamed:
        yield Finding(
            "label",
            version.ref,
            sound=True,
            measured="not written down",
            expected=version.label,
            note=f"The registration of {version.ref} was interrupted at its very end.",
            command=f"mlx doctor registry {name} --repair",
            repair="label",
        )


def _damaged(version: Version, damage: Damage) -> Finding:
    digest, label = damage.tag == DIGEST, damage.tag == LABEL
    return Finding(
        "digest" if digest else "label" if label else "tags",
        version.ref,
        sound=not digest,
        measured=f"{damage.tag}: {damage.text}" if not label else damage.text,
        expected=version.label if label else "as mlx wrote it",
        note=damage.sentence,
        command=f"mlx doctor registry {version.name} --repair" if label else "",
        repair="label" if label else "",
    )


def journal_text(journal: Journal) -> str:
    """A sound journal in one phrase: what it has of moves and rollouts, and how far its anchor reaches."""
    anchor = f"anchor at event {journal.anchor.number}" if journal.anchor else "no anchor yet"
    return f"{counted(journal.valid)}, {anchor}"
