"""`mlx consistency`: do the answers that were served agree with those computed anew?"""

from dataclasses import replace
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.report import Result
from mlx_platform.core.span import time_span
from mlx_platform.core.verdict import verdict_of
from mlx_platform.evaluation.consistency import CONFIDENCE, Tally
from mlx_platform.traffic.readers.opening import log_format as format_of
from mlx_platform.traffic.readers.opening import open_log
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.replay.observer import Observer
from mlx_platform.workflows.replay.page import checks_of, result_of
from mlx_platform.workflows.replay.requests import Account, replayable
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_model, open_subject
from mlx_platform.workflows.tools import tool_versions


def check_consistency(
    context: Context,
    ref: str,
    *,
    traffic: Path,
    since: str | None = None,
    until: str | None = None,
    sample: int | None = None,
    observer: Observer | None = None,
    report: Path | None = None,
    junit: Path | None = None,
    log_format: str | None = None,
    assume_tz: str | None = None,
) -> Result:
    """Replay logged requests through the same package and compare the answers.

    Args:
        context: the command's context.
        ref: the version whose requests are replayed.
        traffic: a traffic log, ours or another platform's.
        since: the first moment, RFC 3339 or an age such as `24h`.
        until: the moment after the last.
        sample: replay so many requests, drawn evenly; None replays all.
        observer: is told of every request that is compared.
        report: a folder for the report.
        junit: a file for the JUnit XML.
        log_format: of the traffic log; None finds it out.
        assume_tz: the zone of times in the log that name none.

    Returns:
        PASS when at least the configured share of requests is shown to agree, FAIL when fewer agree,
        UNDECIDED when too few requests can be compared. The outcome is kept with a registered version.

    Raises:
        UsageError: a plain file instead of a log, or a flag that cannot be used.
        NotFoundError: no such version or folder.
    """
    if traffic.is_file() and log_format is None and format_of(traffic) is None:
        raise UsageError(
            f"{traffic} is a file: served answers can only be replayed from a traffic log.",
            hint="Write one with: mlx serve --traffic DIR",
        )
    check_targets(report=report, junit=junit)
    if sample is not None and sample < 1:
        raise UsageError(f"A sample has at least one request, not {sample}.")
    span = time_span(since, until, now=context.clock())
    threshold = context.settings.consistency.min_agreement
    tally = Tally()
    with open_subject(context, ref) as subject:
        reading = make_reading(subject, log_format=log_format, assume_tz=assume_tz)
        records, stats = open_log(traffic, reading, model=subject.name, since=span.since, until=span.until)
        account = Account(stats)
        requests = replayable(records, account, digest=subject.package.digest, sample=sample)
        model = open_model(context, subject)
        from mlx_platform.workflows.replay.replayer import Replayer

        replayer = Replayer(model, tally, observer)
        with context.progress.stage("replaying", sample) as advance:
            for request in requests:
                replayer.add(request)
                advance(1)
            replayer.finish()
        evidence = _keep(context, subject, tally, account, threshold)
        result = result_of(subject, traffic, tally, account, threshold, evidence)
        result = replace(result, warnings=(*result.warnings, *subject.warnings))
    return write_reports(result, report=report, junit=junit)


def _keep(context: Context, subject: Subject, tally: Tally, account: Account, threshold: float) -> str | None:
    """Record the outcome with a registered version, if anything was compared."""
    if subject.version is None or not subject.sealed or not tally.requests:
        return None
    document = tally.document()
    checks = checks_of(tally, account, threshold)
    evidence = Evidence(
        kind="consistency",
        digest=subject.package.digest,
        verdict=verdict_of(checks),
        created=context.clock(),
        data_fingerprint=account.fingerprint,
        parameters={"threshold": threshold, "confidence": CONFIDENCE, **account.window()},
        numbers={
            "agreement": document["agreement"],
            "requests": {"compared": tally.requests, "agreeing": tally.agreeing},
            "reasons": document["reasons"],
            "gates": [
                {
                    "name": f"{check.name} {check.threshold}",
                    "verdict": str(check.verdict),
                    "shown": check.measured,
                }
                for check in checks
            ],
        },
        tools=tool_versions(),
    )
    context.catalog.record(subject.version, evidence)
    return evidence.id
