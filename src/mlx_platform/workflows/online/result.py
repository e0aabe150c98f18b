"""The result of an online evaluation: of the version that came last, with those before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlx_platform.core.errors import MlxError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.span import Grid
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.judge import shown
from mlx_platform.workflows.online.asked import Asked
from mlx_platform.workflows.online.document import document_of
from mlx_platform.workflows.online.labels import Labels
from mlx_platform.workflows.online.measured import Online
from mlx_platform.workflows.online.page import (
    brief_of,
    details_of,
    facts_of,
    sections_of,
    warnings_of,
)


@dataclass(frozen=True, slots=True)
class Found:
    """One version with its numbers, its checks, and what was kept of them."""

    online: Online
    labels: Labels
    checks: tuple[Check, ...]
    evidence: str | None
    problem: MlxError | None


def result_of(found: Sequence[Found], asked: Asked, grid: Grid, broken: Sequence[Check] = ()) -> Result:
    """The result of the version that came last, with those before it.

    Args:
        found: of each version, the last one last.
        asked: what was asked for.
        grid: how time was cut.
        broken: versions that could not be asked any more.
    """
    several = len(found) + len(broken) > 1
    checks = tuple(
        replace(check, part=", ".join(filter(None, (one.online.subject.ref, check.part))))
        if several
        else check
        for one in found
        for check in one.checks
    )
    checks = (*checks, *broken)
    report = _report(found, asked, checks, several=several)
    documents = [document_of(one.online, one.labels, grid) | {"evidence": one.evidence} for one in found]
    warnings = [warning for one in found for warning in _warnings(one)]
    verdict = verdict_of(checks)
    refused = next((one.problem for one in found if one.problem is not None), None)
    return Result(
        command="eval",
        data=documents[-1] | {"traffic": str(asked.traffic), "versions": documents[:-1]},
        report=report,
        verdict=verdict,
        warnings=tuple(dict.fromkeys(warnings)),
        code=None if refused is None else verdict.exit_code or refused.exit_code,
    )


def _report(found: Sequence[Found], asked: Asked, checks: tuple[Check, ...], *, several: bool) -> Report:
    last = found[-1]
    titled = [(one, f" of {one.online.subject.ref}" if several else "") for one in reversed(found)]
    return Report(
        title=f"Online evaluation of {last.online.subject.ref}",
        summary=" ".join(_sentence(one) for one, _title in titled),
        facts=tuple(facts_of(last.online, last.labels, str(asked.traffic))),
        sections=tuple(section for one, title in titled for section in sections_of(one.online, title)),
        checks=checks,
        brief=tuple(section for one, title in titled for section in brief_of(one.online, title)),
        details=tuple(
            section for one, title in titled for section in details_of(one.online, one.labels, title)
        ),
        next_steps=tuple(_next_steps(last, asked)),
    )


def _warnings(one: Found) -> tuple[str, ...]:
    subject = one.online.subject
    kept = (
        ()
        if one.problem is None
        else (f"The outcome was not kept with {subject.ref}: {one.problem.message}",)
    )
    return (*warnings_of(one.online, one.labels), *subject.warnings, *kept)


def _sentence(one: Found) -> str:
    online, ref = one.online, one.online.subject.ref
    if not online.measurements:
        return f"{ref}: no answered request has a label."
    metric, gap = next(iter(online.gaps.items()))
    measured = online.measurements[metric]
    start = f"{ref}: {metric} {shown(measured.value, measured.lower, measured.upper)} online"
    rows = f"on {plural(online.joined.fates.joined, 'labelled row')}"
    if gap is None:
        return f"{start} {rows}, and nothing offline to compare with."
    words = {
        Verdict.PASS: "as offline",
        Verdict.FAIL: "different from offline",
        Verdict.UNDECIDED: "too little to tell",
        Verdict.ERROR: "not comparable",
    }
    outcome = words[gap.verdict]
    days = len({day.since for day, _metric, _gap in online.failing_days})
    if days and gap.verdict is not Verdict.FAIL:
        outcome = f"{plural(days, 'window')} {'differs' if days == 1 else 'differ'} from it"
    return f"{start} {rows}, {shown(gap.offline.value)} offline: {outcome}."


def _next_steps(last: Found, asked: Asked) -> list[str]:
    ref = last.online.subject.ref
    if not last.online.measurements:
        return [f"mlx feedback LABELS.csv --traffic {asked.traffic}    (tell what was true)"]
    if any(gap is None for gap in last.online.gaps.values()):
        return [f"mlx eval {ref} --data TEST.parquet    (measure it offline)"]
    if verdict_of(last.checks) is Verdict.FAIL:
        return [
            f"mlx drift {ref} --traffic {asked.traffic}    (did the inputs change?)",
            f"mlx consistency {ref} --traffic {asked.traffic}    (or the serving code?)",
        ]
    if any(gap is not None and gap.offline_is_small for gap in last.online.gaps.values()):
        return [f"mlx eval {ref} --data LARGER.parquet    (or a larger --max-difference)"]
    return []
