"""`mlx rollout status`: where a rollout stands, what it counted, and what comes next."""

from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.rollouts import page
from mlx_platform.workflows.rollouts.curves import curves
from mlx_platform.workflows.rollouts.seen import Seen, see

PAUSED = "paused"


def status(
    context: Context,
    name: str,
    *,
    ok_on: str | None = None,
    report: Path | None = None,
    junit: Path | None = None,
) -> Result:
    """Tell where the last rollout of a model stands, and what its servers counted.

    Args:
        context: the command's context.
        name: the model.
        ok_on: `paused`, so that a rollout that waits for somebody ends with 0.
        report: a folder for the report, with the timeline and curves of the looks that this machine has.
        junit: a file for the JUnit XML.

    Returns:
        While it goes on there is no verdict. Afterwards PASS when it was promoted or completed.

    Raises:
        NotFoundError: no such model, or it never had a rollout.
        IntegrityError: the journal is broken, or another version of mlx wrote the rollout.

    Exits:
        4: somebody moved production, which ended it.
        6: it was aborted or rolled back.
        7: it waits for somebody, unless that was said to be fine.
        8: with `--timeout`, it was still going on.
    """
    check_targets(report=report, junit=junit)
    check_ok_on(ok_on)
    result = result_of(context, see(context, name), ok_on=ok_on)
    return write_reports(result, report=report, junit=junit)


def check_ok_on(ok_on: str | None) -> None:
    """Refuse a state that is not one to be fine with.

    Raises:
        UsageError: it is another word than `paused`.
    """
    if ok_on not in {None, PAUSED}:
        raise UsageError(
            f"--ok-on {printable(str(ok_on), 80)!r} is not possible.", hint="Write --ok-on paused."
        )


def result_of(
    context: Context, seen: Seen, *, ok_on: str | None = None, command: str = "rollout status"
) -> Result:
    """The answer of every command that watches a rollout."""
    rollout = seen.rollout
    verdict = seen.verdict
    waits = rollout.active and seen.settled
    tables = (page.arm_table(seen), page.outcome_table(seen), page.process_table(seen))
    return Result(
        command=command,
        data=page.document(seen),
        report=Report(
            title=f"Rollout of {rollout.ref}",
            summary=page.summary(seen),
            facts=page.facts(seen),
            sections=tuple(table for table in tables if table),
            checks=page.checks(seen),
            details=curves(context, seen),
            next_steps=_next_steps(seen),
        ),
        verdict=verdict,
        warnings=_warnings(seen),
        code=0 if waits and ok_on == PAUSED and verdict is Verdict.UNDECIDED else seen.code,
    )


def _warnings(seen: Seen) -> tuple[str, ...]:
    rollout = seen.rollout
    if not rollout.active:
        return ()
    if not seen.processes:
        follow = f"mlx serve {rollout.model}@{rollout.channel} --follow"
        return (f"No server has said yet that it takes part. Start one with: {follow}",)
    found = [
        f"{printable(said.server, 80)} does not have the candidate: {printable(said.problem, 300)}"
        for said in seen.processes
        if said.problem and not said.clean
    ]
    return tuple(found)


def _next_steps(seen: Seen) -> tuple[str, ...]:
    rollout = seen.rollout
    name = rollout.model
    if not rollout.active:
        again = () if rollout.state in {"PROMOTED", "COMPLETED"} else (f"mlx rollout retry {name}",)
        if again and any(verdict.get("failed") for verdict in rollout.verdicts):
            again = (f"mlx rollout retry {name} --force --reason WHY    (it is quarantined)",)
        if page.winner(rollout) == "candidate":
            again = (f"mlx promote {rollout.ref} --to {rollout.channel}",)
        return (f"mlx rollout history {name} --id {rollout.id}", *again)
    if seen.settled:
        return (f"mlx rollout resume {name}", f"mlx rollout abort {name}")
    return (f"mlx rollout status {name} --watch", f"mlx rollout abort {name}")
