"""The page and the document of cross checks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_platform.core.report import Fact, Report, Result, Section, Table
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.consistency import Tally
from mlx_platform.workflows.crosscheck.pairs import Pair, Wanted
from mlx_platform.workflows.replay.page import output_tables
from mlx_platform.workflows.replay.requests import Account
from mlx_platform.workflows.subject import Subject

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Found:
    """What a check found; `pair` tells the sides where there are two."""

    kind: str
    tally: Tally
    pair: Pair | None = None


def result_of(
    subject: Subject,
    wanted: Wanted,
    origin: Path | None,
    account: Account | None,
    found: Sequence[Found],
    checks: Sequence[Check],
) -> Result:
    """What the command returns."""
    verdict = verdict_of(checks)
    data: dict[str, Any] = {
        "model": subject.document(),
        "requests": {
            "from": str(origin) if origin else None,
            **(account.document() if account else {}),
        },
        "checks": [
            {
                "check": check.name,
                "verdict": str(check.verdict),
                "message": check.message or None,
                **next((_document(one) for one in found if one.kind == check.name), {}),
            }
            for check in checks
        ],
    }
    report = Report(
        title=f"Cross checks of {subject.ref}",
        summary=_summary(subject, checks, verdict),
        facts=tuple(_facts(subject, origin, account, wanted)),
        sections=tuple(_sections(found)),
        checks=tuple(checks),
        details=tuple(section for one in found for section in _details(one)),
    )
    return Result("consistency", data, report, verdict, tuple(_warnings(found, subject)))


def _document(found: Found) -> dict[str, Any]:
    document: dict[str, Any] = {"compared": found.tally.requests, "agreeing": found.tally.agreeing}
    pair = found.pair
    if pair is not None:
        document |= {
            "left": pair.left.name,
            "right": pair.right.name,
            "tolerance": pair.rule,
            "unanswered": pair.unanswered,
            "problems": dict(pair.problems.most_common(_EXAMPLES)),
            "differences_between": {
                name: {"left": left, "right": right} for name, (left, right) in pair.facts.items()
            },
        }
    return document | found.tally.document()


def _summary(subject: Subject, checks: Sequence[Check], verdict: Verdict) -> str:
    if verdict is Verdict.PASS:
        return f"{subject.ref} answers the same: {', '.join(check.name for check in checks)}."
    bad = [check for check in checks if check.verdict is verdict]
    if verdict is Verdict.FAIL:
        return f"{subject.ref} does not answer the same: {', '.join(check.name for check in bad)}."
    return f"{subject.ref}: that cannot be told: {', '.join(check.name for check in bad)}."


def _facts(subject: Subject, origin: Path | None, account: Account | None, wanted: Wanted) -> Iterable[Fact]:
    yield Fact("version", f"{subject.ref}, digest {subject.package.digest[:12]}")
    if origin is not None:
        yield Fact("requests", str(origin))
    if account is not None and account.not_comparable:
        yield Fact("left out", f"{account.not_comparable.total():,} that another package answered")
    if wanted.offline is not None:
        yield Fact("training script's rows", str(wanted.offline))


def _sections(found: Sequence[Found]) -> Iterable[Section]:
    rows = tuple(
        (
            one.kind,
            printable(one.pair.left.name, 60) if one.pair else "the file",
            printable(one.pair.right.name, 60) if one.pair else "the package",
            f"{one.tally.requests:,}",
            f"{one.tally.agreeing:,}",
            one.pair.rule if one.pair else "that of the same run",
        )
        for one in found
    )
    if rows:
        columns = ("check", "this", "and that", "compared", "agree", "numbers agree within")
        yield Table("Two ways to answer", columns, rows, numeric=(3, 4))
    for one in found:
        if one.pair is not None and one.pair.facts:
            facts = tuple((name, left, right) for name, (left, right) in one.pair.facts.items())
            yield Table(f"What else differs: {one.kind}", ("", "this", "that"), facts)
    examples = tuple(
        (one.kind, printable(name, 128), stage or "", reasons)
        for one in found
        for name, stage, reasons in one.tally.examples[:_EXAMPLES]
    )
    if examples:
        yield Table("Requests that disagree", ("check", "request", "first stage", "reasons"), examples)


def _details(found: Found) -> Iterable[Section]:
    if found.tally.outputs:
        yield from output_tables(found.tally.outputs, prefix=f"{found.kind}: ")


def _warnings(found: Sequence[Found], subject: Subject) -> Iterable[str]:
    for one in found:
        if one.pair is None or not one.pair.problems:
            continue
        why = printable(one.pair.problems.most_common(1)[0][0], 200)
        if one.pair.unanswered:
            requests = plural(one.pair.unanswered, "request")
            yield f"{one.kind}: {requests} that neither side answers, and that do not count: {why}"
        if one.tally.refused:
            requests = plural(one.tally.refused.total(), "request")
            yield f"{one.kind}: {requests} that only one side answers: {why}"
    yield from subject.warnings
