"""How versions and moves read on a page: the same words in every command."""

from collections.abc import Collection, Iterable
from datetime import datetime

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.report import Fact, Table
from mlx_platform.core.text import plural
from mlx_platform.registry.fields import Field, Known, Value
from mlx_platform.registry.journal import Event
from mlx_platform.registry.rollout import DOCUMENT, transition_of
from mlx_platform.registry.version import ADOPTED_FROM, REGISTERED_FROM, Version

_UNITS = ("kB", "MB", "GB")


def version_facts(version: Version) -> tuple[Fact, ...]:
    """A version in a few lines; what it does not have is left out."""
    facts = {
        "version": version.ref,
        "label": version.label,
        "state": version.state,
        "quarantined": version.quarantined,
        "digest": version.digest or "none: not registered with mlx",
        "size": size_text(version.size) if version.size else "",
        "created": both_zones(version.created),
        "made from": version.parent,
        "adopted from": version.tags.get(ADOPTED_FROM, ""),
        "registered from": version.tags.get(REGISTERED_FROM, ""),
        "dataset": version.dataset_version,
        "commit": commit_text(version.git_commit),
        "description": version.description,
    }
    return tuple(Fact(label, value) for label, value in facts.items() if value)


def commit_text(commit: str) -> str:
    """A commit, and in words when files differed from it."""
    bare = commit.removesuffix("+dirty")
    return f"{bare} (with changes that were not committed)" if bare != commit else commit


def version_table(versions: Iterable[Version], title: str, fields: Iterable[Field] = ()) -> Table:
    """One line per version. Identifiers are whole; a digest is known by the page of its version.

    Args:
        versions: in the order of the lines.
        title: of the table.
        fields: what was asked about: a column each, where the table has none for it.
    """
    asked = {field.text: field for field in fields if field.key}
    rows = tuple(
        (
            version.ref,
            version.state,
            version.label,
            both_zones(version.created),
            version.dataset_version,
            *_asked_cells(version, asked.values()),
        )
        for version in versions
    )
    return Table(title, ("version", "state", "label", "created", "dataset", *(asked or ["metrics"])), rows)


def _asked_cells(version: Version, fields: Iterable[Field]) -> tuple[str, ...]:
    known = Known(version)
    cells = tuple(value_text(known.value(field)) for field in fields)
    return cells or (", ".join(f"{name}={value:.4g}" for name, value in sorted(version.metrics.items())[:3]),)


def value_text(value: Value | None) -> str:
    """A field's value for people and scripts: numbers in full, times in UTC, a set with commas."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1 << 53 else repr(value)
        case datetime():
            return rfc3339(value)
        case tuple():
            return ", ".join(value)
    return value


def number_text(value: float) -> str:
    """A number for people."""
    return f"{value:.4g}"


def event_table(events: Iterable[Event], title: str, deleted: Collection[int] = ()) -> Table:
    """One line per move, with who and why; of a version that was deleted it is said."""

    def holder(number: int | None) -> str:
        return f"{holder_text(number)} (deleted)" if number in deleted else holder_text(number)

    rows = tuple(
        (
            str(event.number),
            both_zones(event.time),
            event.alias,
            holder(event.from_version),
            holder(event.to_version),
            event.kind,
            event.actor,
            event.reason,
            evidence_text(event),
        )
        for event in events
    )
    columns = ("event", "time", "alias", "from", "to", "kind", "who", "reason", "evidence")
    return Table(title, columns, rows, numeric=(0,))


def event_facts(event: Event) -> tuple[Fact, ...]:
    """A move in a few lines."""
    facts = {
        "event": str(event.number),
        "time": both_zones(event.time),
        "from": holder_text(event.from_version),
        "to": holder_text(event.to_version),
        "digest": event.digest,
        "who": event.actor,
        "reason": event.reason,
        "evidence": evidence_text(event),
    }
    return tuple(Fact(label, value) for label, value in facts.items() if value)


def evidence_text(event: Event) -> str:
    """What a move stood on, and which gates were let pass by hand; of a transition, the rollout's state."""
    if transition := transition_of(event):
        return f"{transition.id}: {transition.phrase}"
    found = [
        f"{kind} {summary['verdict']}"
        for kind, summary in sorted(event.evidence.items())
        if isinstance(summary, dict) and "verdict" in summary
    ]
    rollout = event.evidence.get(DOCUMENT)
    if isinstance(rollout, str):
        found.append(f"rollout {rollout}")
    by_hand = event.evidence.get("overridden")
    if isinstance(by_hand, list) and by_hand:
        found.append(f"by hand: {', '.join(map(str, by_hand))}")
    return ", ".join(found)


def time_text(written: str) -> str:
    """A time out of a tag as every other time is shown; as it is, where it is none."""
    try:
        moment = datetime.fromisoformat(written)
        return both_zones(moment) if moment.tzinfo else written
    except (ValueError, OverflowError):
        return written


def age_text(moment: datetime, now: datetime) -> str:
    """How long ago something was, in the largest unit that fits: `3 days ago`."""
    seconds = int((now - moment).total_seconds())
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return f"{plural(seconds // size, unit)} ago"
    return "just now"


def holder_text(number: int | None) -> str:
    """A version number, or nobody."""
    return "nobody" if number is None else str(number)


def size_text(size: int) -> str:
    """Bytes for people: `12.3 MB`, exact below a kilobyte."""
    if size < 1000:
        return f"{size} bytes"
    power = min(len(_UNITS), (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.3g} {_UNITS[power - 1]} ({size:,} bytes)"
