"""`mlx show`: everything about a version."""

from collections.abc import Iterable, Mapping

from mlx_platform.core.errors import IntegrityError
from mlx_platform.core.report import Fact, Report, Result, Section, Table
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.journal import Event
from mlx_platform.registry.policy import producing_command
from mlx_platform.registry.version import INPUTS, OUTPUTS, TASK, EvidenceSummary, Version, evidence_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import event_table, version_facts
from mlx_platform.workflows.subject import not_sealed


def show(context: Context, ref: str) -> Result:
    """Show a version's lineage, signature, evidence, and the moves that it took part in.

    Raises:
        NotFoundError: no such model, version, alias or label.
        UsageError: no reference to a version.
    """
    version = context.catalog.resolve(ref)
    evidence = evidence_of(version)
    moves, warnings = _moves(context, version)
    signature = {
        "task": version.tags.get(TASK, ""),
        "inputs": version.tags.get(INPUTS, ""),
        "outputs": version.tags.get(OUTPUTS, ""),
    }
    sections: list[Section] = []
    if version.params:
        sections.append(Table("Parameters", ("name", "value"), tuple(sorted(version.params.items()))))
    if version.metrics:
        rows = tuple((name, f"{value:.6g}") for name, value in sorted(version.metrics.items()))
        sections.append(Table("Training metrics", ("name", "value"), rows, numeric=(1,)))
    if evidence:
        sections.append(_evidence_table(evidence.values()))
    if moves:
        sections.append(event_table(moves, "Moves"))
    return Result(
        command="show",
        data=version.document()
        | {"signature": signature}
        | {"evidence": {kind: found.document() for kind, found in evidence.items()}}
        | {"history": [event.document() for event in moves]},
        report=Report(
            title=version.ref,
            summary=f"{version.ref}: {version.state}.",
            facts=(
                *version_facts(version)[1:],
                *(Fact(label, value) for label, value in signature.items() if value),
            ),
            sections=tuple(sections),
            next_steps=_next_steps(version, evidence),
        ),
        warnings=(*warnings, *not_sealed(version)),
    )


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


def _evidence_table(found: Iterable[EvidenceSummary]) -> Table:
    rows = tuple(
        (
            printable(summary.kind, 80),
            Verdict(summary.verdict) if summary.verdict in set(Verdict) else printable(summary.verdict, 40),
            printable(summary.created, 40),
            printable(summary.data_fingerprint, 80),
            printable(summary.id, 40),
        )
        for summary in found
    )
    return Table("Evidence", ("kind", "verdict", "created", "data", "id"), rows)


def _next_steps(version: Version, evidence: Mapping[str, EvidenceSummary]) -> tuple[str, ...]:
    if not version.sealed:
        return (f"mlx adopt {version.ref}",)
    if version.archived or version.quarantined:
        return (f"mlx list {version.name}",)
    steps = []
    if "evaluation" not in evidence:
        steps.append(producing_command("evaluation", version))
    if "staging" not in version.aliases and "production" not in version.aliases:
        steps.append(f"mlx promote {version.ref} --to staging")
    elif "production" not in version.aliases:
        steps.append(f"mlx promote {version.ref} --to production")
    else:
        steps.append(f"mlx serve {version.name}@production")
    return tuple(steps)
