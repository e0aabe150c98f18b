"""`mlx gate`: which of what an alias asks is there, which is missing, and how to get it."""

from dataclasses import replace
from pathlib import Path

from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.rollout import superseded
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import holder_text
from mlx_platform.workflows.judgement import Judgement, check_target, judge_version
from mlx_platform.workflows.reports.write import check_targets, write_reports


def gate(
    context: Context, ref: str, *, to: str, report: Path | None = None, junit: Path | None = None
) -> Result:
    """Judge a version as `promote` would, and move nothing.

    Args:
        context: the command's context.
        ref: the version.
        to: the alias.
        report: a folder for the report.
        junit: a file for the JUnit XML.

    Returns:
        PASS when the version may hold the alias, FAIL when something speaks against it, UNDECIDED when
        evidence is missing or too old.

    Raises:
        IntegrityError: the package's bytes are missing or changed.
        NotFoundError: no such version.
        UsageError: an alias that looks misspelt, or a gate file that cannot be read.
    """
    check_targets(report=report, junit=junit)
    version = context.catalog.resolve(ref)
    journal = context.catalog.journal(version.name)
    holders = context.catalog.holders(version.name, journal)
    check_target(to, {*context.settings.promotion, *holders})
    judgement = judge_version(context, version, to, holders.get(to), journal)
    result = replace(_result(judgement), warnings=superseded(version.name, journal, to))
    return write_reports(result, report=report, junit=junit)


def _result(judgement: Judgement) -> Result:
    version, alias = judgement.version, judgement.alias
    steps = [*judgement.commands]
    if not judgement.open and judgement.before != version.number:
        steps.append(f"mlx promote {version.ref} --to {alias}")
    return Result(
        command="gate",
        data=judgement.document(),
        report=Report(
            title=f"gate {version.ref} → {alias}",
            summary=_summary(judgement),
            facts=tuple(_facts(judgement)),
            checks=judgement.checks,
            next_steps=tuple(steps),
        ),
        verdict=judgement.verdict,
    )


def _summary(judgement: Judgement) -> str:
    version, alias = judgement.version, judgement.alias
    if judgement.verdict is not Verdict.PASS:
        return f"{version.ref} may not hold {alias}: {judgement.reasons}."
    if judgement.before == version.number:
        return f"{version.ref} holds {alias}, and may."
    return f"{version.ref} may move to {alias}."


def _facts(judgement: Judgement) -> list[Fact]:
    policy = judgement.policy
    asks: list[str] = [*policy.needs]
    if policy.min_age:
        asks.append(f"age of {policy.min_age}")
    if policy.max_evidence_age:
        asks.append(f"evidence of the last {policy.max_evidence_age}")
    facts = {
        "version": judgement.version.ref,
        "digest": judgement.version.digest,
        f"{judgement.alias} now": holder_text(judgement.before),
        "policy": f"needs {', '.join(asks)}" if asks else "needs no evidence",
        "by hand": judgement.by_hand if policy.allow_override else "not allowed",
    }
    return [Fact(label, value) for label, value in facts.items() if value]
