"""`mlx consistency --last`: the same check night after night, with what came before and what was missed."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.files import file_lock, recover_folders
from mlx_platform.core.report import Result
from mlx_platform.core.span import time_zone
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.nights.kept import FOLDER, KeptNight, keep_night, kept_nights
from mlx_platform.workflows.nights.look import Request, look_at
from mlx_platform.workflows.nights.page import account_of, broken_night, night_result, with_missed
from mlx_platform.workflows.nights.window import Night, missed_nights, night_before
from mlx_platform.workflows.reports.write import attempt, check_targets, write_reports
from mlx_platform.workflows.subject import open_subject


def check_nights(
    context: Context,
    asked: Request,
    *,
    last: str,
    zone: str = "UTC",
    catch_up: int = 0,
    report: Path | None = None,
    junit: Path | None = None,
) -> Result:
    """Check the newest whole window, and those that no run looked at when they were new.

    Each window has a report of its own in `<report>/nights/`; the newest one's stands in `<report>` as well.

    Args:
        context: the command's context.
        asked: which version and log, and what to show.
        last: the length of a window, such as `24h` or `1d`.
        zone: whose days are meant.
        catch_up: look back so many windows for missed ones.
        report: a folder that keeps the nights.
        junit: a file for the JUnit XML.

    Returns:
        What was found out about the newest window; the verdict is the worst of all windows looked at.

    Raises:
        UsageError: options that do not go together, or a folder that holds another model's nights.
        UnavailableError: another run is at work in the report folder.
        MlxError: as `check_consistency` raises them.
    """
    check_targets(report=report, junit=junit)
    if catch_up and report is None:
        raise UsageError("Missed nights are those without a report.", hint="Say where they are: --report DIR")
    cut_in, now = time_zone(zone), context.clock()
    newest = night_before(last, cut_in, now=now)
    with _alone(context, report) if report else nullcontext():
        kept, warnings = _kept(context, asked, report)
        missed = missed_nights(last, cut_in, catch_up, [night.until for night in kept], now=now)
        broken = []
        results = []
        for night in missed:
            try:
                results.append(_checked(context, asked, night, kept, report))
            except MlxError as error:
                # Missed it stays, and the newest night must be looked at all the same.
                broken.append(broken_night(night, error.message))
        results.append(_checked(context, asked, newest, kept, report))
        final = with_missed(results, broken)
        final = replace(final, warnings=(*warnings, *final.warnings))
        return write_reports(final, report=report, junit=junit)


def _checked(
    context: Context, asked: Request, night: Night, kept: list[KeptNight], report: Path | None
) -> tuple[KeptNight, Result]:
    """Look at a window and keep what was found; `kept` has its account from then on."""
    seen = look_at(context, asked, night)
    before = [one for one in kept if one.until < night.until]
    result = night_result(seen, before, asked, threshold=context.settings.consistency.min_agreement)
    account = account_of(seen, result, before)
    if report is not None:
        result = attempt(result, lambda: keep_night(report, account, result))
    kept[:] = sorted([*(one for one in kept if one.key != account.key), account], key=lambda one: one.until)
    return account, result


def _kept(context: Context, asked: Request, report: Path | None) -> tuple[list[KeptNight], list[str]]:
    if report is None:
        return [], []
    recover_folders(report / FOLDER)
    with open_subject(context, asked.ref) as subject:
        return kept_nights(report, subject.name)


@contextmanager
def _alone(context: Context, report: Path) -> Iterator[None]:
    """Nobody else writes into the report folder meanwhile."""
    holder = f"process {os.getpid()} of {socket.gethostname()}, since {rfc3339(context.clock())}"
    with file_lock(report / ".lock", timeout=0, purpose=f"checking for {report}", holder=holder):
        yield
