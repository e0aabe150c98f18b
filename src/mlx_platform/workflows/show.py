"""`mlx show`: everything about a version."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from mlx_platform.core.errors import IntegrityError, MlxError
from mlx_platform.core.report import Fact, Report, Result, Section, Table
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.damage import told_damage
from mlx_platform.registry.findings import metrics_of
from mlx_platform.registry.journal import Event
from mlx_platform.registry.ref import VersionRef, parse_ref
from mlx_platform.registry.removal import ARCHIVED_AT, ARCHIVED_BY, ARCHIVED_REASON
from mlx_platform.registry.version import (
    ACTOR,
    ENVIRONMENT,
    INPUTS,
    OUTPUTS,
    TASK,
    EvidenceSummary,
    Version,
    evidence_of,
)
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import (
    age_text,
    event_table,
    number_text,
    time_text,
    version_facts,
)
from mlx_platform.workflows.selected import selected_fields
from mlx_platform.workflows.steps import next_steps
from mlx_platform.workflows.subject import adoption, not_sealed

_MOST_ANCESTORS = 20
_MOST_NUMBERS = 4  # of one finding on a page


def show(context: Context, ref: str, *, fields: Sequence[str] = ()) -> Result:
    """Show a version's lineage, signature, evidence, and the moves that it took part in.

    Args:
        context: the command's context.
        ref: the version.
        fields: only these, one value a line: keys of the JSON document, or fields of `mlx list --where`.

    Raises:
        NotFoundError: no such model, version, alias or label, or the version has no such metric or parameter.
        UsageError: no reference to a version, or no such field.
    """
    version = context.catalog.resolve(ref)
    evidence = evidence_of(version)
    moves, warnings = _moves(context, version)
    family = _family(context, version)
    data = _document(version, evidence, family, moves) | {"increment": _increment(context, version)}
    if fields:
        return selected_fields(version, data, fields)
    deleted = context.catalog.removal.deleted(version.name) if moves else {}
    advice, way = ("", "") if version.sealed else adoption(context, version)
    return Result(
        command="show",
        data=data,
        report=Report(
            title=version.ref,
            summary=f"{version.ref}: {version.state}.",
            facts=(*version_facts(version)[1:], *_facts(version, data)),
            sections=tuple(_sections(context.clock(), version, evidence, moves, deleted)),
            next_steps=next_steps(context, version, way),
        ),
        warnings=(*warnings, *not_sealed(version, advice), *told_damage(version)),
    )


def _document(
    version: Version,
    evidence: Mapping[str, EvidenceSummary],
    family: Mapping[str, list[str]],
    moves: Iterable[Event],
) -> dict[str, Any]:
    tags = version.tags
    archive = {"by": ARCHIVED_BY, "reason": ARCHIVED_REASON, "at": ARCHIVED_AT}
    signature = {"task": TASK, "inputs": INPUTS, "outputs": OUTPUTS}
    return version.document() | {
        "actor": tags.get(ACTOR, ""),
        "environment": tags.get(ENVIRONMENT, ""),
        "dirty": version.git_commit.endswith("+dirty"),
        "signature": {key: tags.get(tag, "") for key, tag in signature.items()},
        "archive": {key: tags.get(tag, "") for key, tag in archive.items()} if version.archived else None,
        "family": dict(family),
        "evidence": {kind: found.document() for kind, found in evidence.items()},
        "history": None if version.doubt else [event.document() for event in moves],
    }


def _increment(context: Context, version: Version) -> dict[str, Any] | None:
    """The labels that it was trained on, where they are kept here."""
    if "@" not in version.dataset_version:
        return None  # the name of an increment has its digest
    from mlx_platform.workflows.datasets.store import Datasets

    found = Datasets(context).named(version.dataset_version)
    if found is None:
        return None
    return {"ref": found.ref, "rows": found.rows, "parent": found.parent, "models": list(found.models)}


def _increment_text(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    after = f", after {found['parent'][:16]}" if found["parent"] else ""
    return f"{plural(found['rows'], 'labelled row')}{after}, answered by {', '.join(found['models'])}"


def _family(context: Context, version: Version) -> dict[str, list[str]]:
    """The versions that it was made from, nearest first, and those of its model that were made from it."""
    parents: list[str] = []
    parent = version.parent
    while parent and parent not in {version.ref, *parents} and len(parents) < _MOST_ANCESTORS:
        parents.append(parent)
        try:
            ref = parse_ref(parent)
            # Whoever writes tags could name anything; only a version has a parent of its own.
            parent = context.catalog.resolve(ref).parent if isinstance(ref, VersionRef) else ""
        except MlxError:
            break  # deleted, or never there: its name is all that is known
    return {"parents": parents, "children": list(context.catalog.children(version))}


def _facts(version: Version, data: Mapping[str, Any]) -> Iterator[Fact]:
    family, archive, signature = data["family"], data["archive"] or {}, data["signature"]
    found = {
        "registered by": data["actor"],
        "environment": data["environment"],
        "dataset fingerprint": data["dataset_fingerprint"],
        "increment": _increment_text(data["increment"]),
        "ancestors": " <- ".join(family["parents"][1:]),
        "made into": ", ".join(family["children"]),
        "run": version.run_id,
        "source": version.source,
        "archived by": archive.get("by", ""),
        "archived at": time_text(archive.get("at", "")),
        "archived for": archive.get("reason", ""),
    }
    for label, value in (found | signature).items():
        if value:
            yield Fact(label, printable(value, 4000))


def _sections(
    now: datetime,
    version: Version,
    evidence: Mapping[str, EvidenceSummary],
    moves: Sequence[Event],
    deleted: Mapping[int, object],
) -> Iterator[Section]:
    if version.params:
        yield Table("Parameters", ("name", "value"), tuple(sorted(version.params.items())))
    if version.metrics:
        rows = tuple((name, f"{value:.6g}") for name, value in sorted(version.metrics.items()))
        yield Table("Training metrics", ("name", "value"), rows, numeric=(1,))
    if evidence:
        yield _evidence_table(evidence.values(), now)
    if moves:
        yield event_table(moves, "Moves", deleted.keys())


def _moves(context: Context, version: Version) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """The moves that a version took part in, and what to warn of."""
    try:
        events = context.catalog.history(version.name)
        warnings = context.catalog.differences(version.name)
    except IntegrityError as error:
        # A version that is named by its number is shown although its aliases cannot be believed.
        return (), (f"{error.message} Its aliases and moves are not shown.",)
    return tuple(
        event for event in events if version.number in {event.from_version, event.to_version}
    ), warnings


def _evidence_table(found: Iterable[EvidenceSummary], now: datetime) -> Table:
    rows = tuple(
        (
            printable(summary.kind, 80),
            Verdict(summary.verdict) if summary.verdict in set(Verdict) else printable(summary.verdict, 40),
            _age(summary.created, now),
            _numbers(summary),
            printable(summary.data_fingerprint, 80),
            printable(summary.id, 40),
        )
        for summary in found
    )
    return Table("Evidence", ("kind", "verdict", "age", "numbers", "data", "id"), rows)


def _age(created: str, now: datetime) -> str:
    try:
        moment = datetime.fromisoformat(created)
        return age_text(moment, now)
    except (ValueError, TypeError, OverflowError):
        return printable(created, 40)


def _numbers(summary: EvidenceSummary) -> str:
    """The first numbers of a finding; ends of intervals and differences are for `--json`."""
    plain = {
        name: value
        for name, value in metrics_of(summary.numbers).items()
        if not name.endswith((".lower", ".upper")) and not name.startswith("differences.")
    }
    shown = [f"{name}={number_text(value)}" for name, value in list(plain.items())[:_MOST_NUMBERS]]
    more = len(plain) - len(shown)
    return printable(", ".join(shown + ([f"{more} more"] if more else [])), 500)
