"""Watching a rollout until there is nothing left to wait for, or the time is over."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mlx_platform.core.clock import span_seconds
from mlx_platform.core.errors import DeadlineError, UnavailableError
from mlx_platform.core.report import Result
from mlx_platform.core.text import first_line
from mlx_platform.core.values import frozen
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.rollouts.seen import see
from mlx_platform.workflows.rollouts.status import check_ok_on, result_of

_PATIENCE = 60.0  # seconds without an answer of the registry


@frozen
class Waiting:
    """For how long somebody waits (None: until it is over), and how often they look."""

    timeout_s: float | None
    ok_on: str | None
    every_s: float

    @classmethod
    def of(cls, *, timeout: str | None, ok_on: str | None, every: float) -> "Waiting":
        """What the flags say.

        Raises:
            UsageError: no span of time, or no state to be fine with.
        """
        check_ok_on(ok_on)
        return cls(None if timeout is None else span_seconds(timeout), ok_on, every)


def watch(
    context: Context,
    name: str,
    waiting: Waiting,
    *,
    rollout: str | None = None,
    command: str = "rollout status",
    report: Path | None = None,
    junit: Path | None = None,
) -> Iterator[Result]:
    """Where a rollout stands, again and again; the last result is the answer, with its exit code.

    It ends once the rollout has ended or waits for somebody, or with 8 when the time is over. A registry that
    is away for a moment is asked again.

    Args:
        context: the command's context.
        name: the model.
        waiting: for how long.
        rollout: this one; otherwise the last one there is at the first look.
        command: which command watches.
        report: a folder for the report of the last result.
        junit: a file for its JUnit XML.

    Raises:
        NotFoundError: no such model, or it never had a rollout.
        UnavailableError: the registry has been away for a minute.
    """
    check_targets(report=report, junit=junit)
    began = heard = time.monotonic()
    result: Result | None = None
    while True:
        try:
            seen = see(context, name, rollout)
        except UnavailableError as error:
            if result is None or time.monotonic() - heard > _PATIENCE:
                raise
            yield replace(result, warnings=(f"The registry does not answer: {first_line(error)}.",))
        else:
            heard = time.monotonic()
            rollout = seen.rollout.id
            result = result_of(context, seen, ok_on=waiting.ok_on, command=command)
            if seen.settled:
                break
            if waiting.timeout_s is not None and heard - began >= waiting.timeout_s:
                result = _late(result, waiting.timeout_s)
                break
            yield result
        time.sleep(_pause(began, waiting))
    yield write_reports(result, report=report, junit=junit)


def _pause(began: float, waiting: Waiting) -> float:
    if waiting.timeout_s is None:
        return waiting.every_s
    return min(waiting.every_s, max(0.0, began + waiting.timeout_s - time.monotonic()))


def _late(result: Result, seconds: float) -> Result:
    summary = f"{result.report.summary.rstrip('.')}, and still going on after {seconds:g} s."
    return replace(
        result,
        report=replace(result.report, summary=summary),
        verdict=Verdict.UNDECIDED,
        code=DeadlineError.exit_code,
    )
