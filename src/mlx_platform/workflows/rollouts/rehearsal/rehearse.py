"""`mlx rollout rehearse`: both ways back to the version before, under test load, with a stopwatch."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.clock import span_seconds
from mlx_platform.core.errors import ConflictError, NotFoundError, UnavailableError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import first_line, plural, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.registry.ref import AliasRef, VersionRef, check_name
from mlx_platform.registry.rollout import active_rollout
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.rollback import rollback
from mlx_platform.workflows.rollouts.rehearsal.load import TIMEOUT, Answer, Load, questions_of
from mlx_platform.workflows.rollouts.rehearsal.process import pinned_server
from mlx_platform.workflows.watching.connection import connection_to

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model

CHANNEL = "production"
_WARM = 1.0  # seconds of load before anything happens
_QUIET = 0.5  # seconds without an answer of the version before, after which it is gone
_PATIENCE = 15.0  # seconds beyond the limit, for a flip that comes late


@dataclass(frozen=True, slots=True)
class Measured:
    """One way back. `decided_s` is until the registry said so, or the process was ready.

    `seconds` is until every new request was answered by the other version, None where that never happened.
    """

    name: str
    decided_s: float
    seconds: float | None
    requests: int
    failed: int


def rehearse(
    context: Context,
    name: str,
    *,
    server: str,
    confirm: Callable[[str], bool],
    callers: int = 4,
    within: str = "5s",
    report: Path | None = None,
    junit: Path | None = None,
) -> Result:
    """Roll production back and forth on a running server, and start a server of the version before beside it.

    Callers of its own ask the server without a break. First `mlx rollback` is performed and undone; then a
    fresh process pinned to the version before is started, and the callers are sent there. Requests of
    everybody else are answered by that version for some seconds as well.

    Args:
        context: the command's context.
        name: the model.
        server: the address of a server that follows its production.
        confirm: asked with a sentence before anything moves; nothing moves unless it says yes.
        callers: how many ask at a time.
        within: the longest time that a flip may take to reach all traffic.
        report: a folder for the report.
        junit: a file for the JUnit XML.

    Returns:
        PASS when no request failed and both flips were in time; a flip that never reached the server, or a
        failed request, is FAIL.

    Raises:
        ConflictError: a rollout goes on, there is no version to go back to, or somebody moved production.
        NotFoundError: nobody holds production, or the server serves another model.
        UnavailableError: the server does not answer.
        UsageError: no URL, or the model has no golden cases to ask it with.
    """
    check_targets(report=report, junit=junit)
    limit = span_seconds(within)
    current, previous = _versions(context, name)
    questions = questions_of(_model(context, current))
    _check_server(server, current)
    question = (
        f"Production of {name} goes from {current.number} to {previous.number} and back while {server} is "
        "under load. Go on?"
    )
    if not confirm(question):
        return _declined(name)
    found: list[Measured] = []
    with Load(server, questions, callers) as load:
        time.sleep(_WARM)
        _check_load(load, server)
        try:
            found.append(_flip(load, "mlx rollback", previous, limit, lambda: _back(context, current)))
        finally:
            returned = _flip(load, "and back", current, limit, lambda: _forth(context, current, previous))
        found.append(returned)
        found.append(_fresh(context, load, server, previous))
    warnings = deliver_pending(context, name)
    result = _result(current, previous, server, callers, limit, found, warnings)
    return write_reports(result, report=report, junit=junit)


def _versions(context: Context, name: str) -> tuple[Version, Version]:
    """Who holds production, and where a rollback would go."""
    check_name(name)
    active = active_rollout(context.catalog.journal(name))
    if active:
        raise ConflictError(
            f"A rehearsal moves production, which would end the rollout. {active.sentence(name)}",
            hint=f"Wait for it, or end it: mlx rollout abort {name}",
        )
    target = rollback(context, name, verify=False, dry_run=True).data
    resolve = context.catalog.resolve
    return resolve(AliasRef(name, CHANNEL, 0)), resolve(VersionRef(name, target["version"]))


def _model(context: Context, version: Version) -> "Model":
    from mlx_platform.inference.model import Model

    package = context.catalog.fetch(version)
    return Model.load(package, name=version.name, version=str(version.number), device="cpu", threads=1)


def _check_server(server: str, current: Version) -> None:
    connection = connection_to(server, TIMEOUT)
    try:
        connection.request("GET", f"/v2/models/{current.name}")
        response = connection.getresponse()
        response.read()
    except OSError as error:
        raise UnavailableError(
            f"{printable(server, 200)} does not answer: {first_line(error)}.",
            hint="Give the first address that mlx serve prints.",
        ) from error
    finally:
        connection.close()
    version = printable(response.getheader("X-Mlx-Version", ""), 40)
    if response.status != 200 or not version:
        raise NotFoundError(
            f"{printable(server, 200)} does not serve {current.name}.",
            hint="Give the first address that mlx serve prints.",
        )
    if version != str(current.number):
        raise ConflictError(
            f"{printable(server, 200)} serves {current.name}/{version}; production is {current.number}.",
            hint=f"Serve it with: mlx serve {current.name}@{CHANNEL} --follow",
        )


def _check_load(load: Load, server: str) -> None:
    answers = load.since(0.0)
    if not answers or all(answer.failed for answer in answers):
        status = answers[-1].status if answers else 0
        said = f"status {status}" if status else "no answer"
        raise UnavailableError(f"{printable(server, 200)} does not answer the golden cases: {said}.")


def _back(context: Context, current: Version) -> None:
    rollback(context, current.name, expect=str(current.number), reason="rehearsal of a rollback")


def _forth(context: Context, current: Version, previous: Version) -> None:
    """Put production back where it was, unless it is there or somebody moved it elsewhere."""
    holder = context.catalog.holders(current.name).get(CHANNEL)
    if holder == current.number:
        return
    context.catalog.move(
        current.name,
        CHANNEL,
        current.number,
        expect=previous.number,
        kind="promote",
        actor=context.actor,
        reason="end of the rehearsal: back to where it was",
        evidence={"overridden": ["quarantine"]},
    )


def _flip(load: Load, name: str, target: Version, limit: float, act: Callable[[], None]) -> Measured:
    """Do what moves production, and wait until all traffic has followed."""
    start = time.monotonic()
    act()
    decided = time.monotonic()
    end = decided + limit + _PATIENCE
    version = str(target.number)
    while time.monotonic() < end:
        time.sleep(0.05)
        last = max(load.last_sent(version, other=True), start)
        if time.monotonic() - last > _QUIET and load.last_sent(version) > last:
            return _measured(load, name, start, decided, last)
    return _measured(load, name, start, decided, None)


def _measured(load: Load, name: str, start: float, decided: float, last: float | None) -> Measured:
    answers = load.since(start)
    seconds = None if last is None else max(last, decided) - start
    failed = sum(answer.failed for answer in answers)
    return Measured(name, decided - start, seconds, len(answers), failed)


def _fresh(context: Context, load: Load, server: str, previous: Version) -> Measured:
    """Start a server of the version before, and send the callers there and back."""
    start = time.monotonic()
    version = str(previous.number)
    with pinned_server(context.settings, previous.ref) as url:
        decided = time.monotonic()
        load.url = url
        end = decided + _PATIENCE
        first: Answer | None = None
        while first is None and time.monotonic() < end:
            time.sleep(0.05)
            fine = (one for one in load.since(decided) if not one.failed and one.version == version)
            first = next(fine, None)
        time.sleep(_WARM)
        answers = load.since(start)
        load.url = server
        time.sleep(_QUIET)
    seconds = first.received - start if first else None
    return Measured(
        "fresh process", decided - start, seconds, len(answers), sum(answer.failed for answer in answers)
    )


def _declined(name: str) -> Result:
    return Result(
        command="rollout rehearse",
        data={"name": name, "changed": False},
        report=Report(title=f"rollout rehearse {name}", summary="Nothing was rehearsed."),
        verdict=Verdict.UNDECIDED,
    )


def _result(
    current: Version,
    previous: Version,
    server: str,
    callers: int,
    limit: float,
    found: list[Measured],
    warnings: tuple[str, ...],
) -> Result:
    checks = tuple(check for one in found for check in _checks(one, limit))
    return Result(
        command="rollout rehearse",
        data={
            "name": current.name,
            "server": server,
            "version": current.number,
            "previous": previous.number,
            "callers": callers,
            "changed": False,
            "within_seconds": limit,
            "ways": [asdict(one) for one in found],
        },
        report=Report(
            title=f"Rehearsal of a rollback of {current.name}",
            summary=_summary(current, previous, found),
            facts=(
                Fact("server", server),
                Fact("production", f"{current.ref}, as before"),
                Fact("went back to", previous.ref),
                Fact("load", f"{plural(callers, 'caller')}, without a break, with the golden cases"),
            ),
            sections=(_table(found),),
            checks=checks,
            next_steps=(f"mlx history {current.name}",),
        ),
        verdict=verdict_of(checks),
        warnings=warnings,
    )


def _summary(current: Version, previous: Version, found: list[Measured]) -> str:
    failed, requests = sum(one.failed for one in found), sum(one.requests for one in found)
    ways = ", ".join(f"{one.name} {_seconds(one.seconds)}" for one in found)
    return (
        f"{current.ref} → {previous.ref} → {current.ref}: {ways}; "
        f"{failed:,} of {plural(requests, 'request')} failed."
    )


def _table(found: list[Measured]) -> Table:
    rows = tuple(
        (
            one.name,
            _seconds(one.decided_s),
            _seconds(one.seconds),
            f"{one.requests:,}",
            f"{one.failed:,}",
        )
        for one in found
    )
    columns = ("way", "decided or ready", "all traffic", "requests", "failed")
    return Table("Measured", columns, rows, numeric=(1, 2, 3, 4))


def _checks(one: Measured, limit: float) -> tuple[Check, ...]:
    failed = Check(
        f"{one.name}: requests",
        Verdict.FAIL if one.failed else Verdict.PASS if one.requests else Verdict.UNDECIDED,
        f"{one.failed:,} of {one.requests:,} failed",
        "none",
        group="rehearsal",
    )
    fresh = one.name == "fresh process"
    late = one.seconds is None or (not fresh and one.seconds > limit)
    seconds = Check(
        f"{one.name}: seconds",
        Verdict.FAIL if late else Verdict.PASS,
        _seconds(one.seconds),
        "reaches all traffic" if fresh else f"<= {limit:g} s",
        "" if one.seconds is not None else "The traffic never followed: is the server started with --follow?",
        group="rehearsal",
    )
    return seconds, failed


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"
