"""`mlx consistency --check`: the same requests answered in two ways, and whether that makes a difference."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.span import time_span
from mlx_platform.core.text import listed, printable
from mlx_platform.core.values import frozen
from mlx_platform.evaluation.consistency import Tally
from mlx_platform.inference.model import Model
from mlx_platform.traffic.readers.opening import open_log
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.crosscheck.answering import Case
from mlx_platform.workflows.crosscheck.cases import case_of, cases_in
from mlx_platform.workflows.crosscheck.offline import compare_offline
from mlx_platform.workflows.crosscheck.page import Found, result_of
from mlx_platform.workflows.crosscheck.pairs import KINDS, Pair, Wanted, judged, make_pairs, run_pairs
from mlx_platform.workflows.inputs import left_out
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.replay.requests import Account, replayable
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_model, open_subject

MOST_REQUESTS = 1000  # a share of 99 % shows itself in 299


@frozen
class Origin:
    """Where requests come from: a traffic log, or a file whose rows make some.

    Attributes:
        traffic: the log.
        data: the file.
        since: the first moment of the log, RFC 3339 or an age such as `24h`.
        until: the moment after the last.
        sample: so many requests, drawn evenly from a log and the first of a file.
        log_format: of the log; None finds it out.
        assume_tz: the zone of times in the log that name none.
    """

    traffic: Path | None = None
    data: Path | None = None
    since: str | None = None
    until: str | None = None
    sample: int | None = None
    log_format: str | None = None
    assume_tz: str | None = None


def cross_check(
    context: Context,
    ref: str,
    wanted: Wanted,
    origin: Origin,
    *,
    report: Path | None = None,
    junit: Path | None = None,
) -> Result:
    """Answer the same requests in two ways and compare.

    Args:
        context: the command's context.
        ref: the version.
        wanted: the checks.
        origin: of the requests; `offline` brings rows of its own.
        report: a folder for the report.
        junit: a file for the JUnit XML.

    Returns:
        for each check PASS when at least the configured share of requests is shown to agree, FAIL when fewer
        do, UNDECIDED when there are too few or the comparison cannot be made here. Nothing is kept.

    Raises:
        UsageError: no such check, no requests to compare with, or a file that cannot be used.
        NotFoundError: no such version, log or file.
        UndecidedError: a file has no rows.
    """
    check_targets(report=report, junit=junit)
    for kind in wanted.kinds:
        if kind not in KINDS:
            raise UsageError(f"There is no check {printable(kind, 40)!r}.", hint=f"Known: {listed(KINDS)}.")
    if wanted.needs_requests and (origin.traffic is None) == (origin.data is None):
        raise UsageError("The check needs requests.", hint="Name either --traffic DIR or --data FILE.")
    if not wanted.needs_requests and (origin.traffic or origin.data):
        raise UsageError(
            "--offline brings its own rows.",
            hint="Leave out --traffic and --data, or name a --check as well.",
        )
    if origin.traffic is None and (origin.since or origin.until or origin.log_format or origin.assume_tz):
        raise UsageError(
            "--since, --until, --format and --assume-tz are about a log: name it with --traffic."
        )
    threshold = context.settings.consistency.min_agreement
    with open_subject(context, ref) as subject, ExitStack() as stack:
        model = open_model(context, subject, device="cpu")
        pairs, checks = make_pairs(context, subject, model, wanted, stack)
        account = _compare(context, subject, model, pairs, origin) if pairs else None
        checks += [pair.check(threshold) for pair in pairs]
        checks.sort(key=lambda check: KINDS.index(check.name) if check.name in KINDS else len(KINDS))
        found = [Found(pair.kind, pair.tally, pair) for pair in pairs]
        if wanted.offline is not None:
            tally = _offline(context, subject, model, wanted.offline, origin.sample)
            checks.append(judged("offline", tally, threshold, "row"))
            found.append(Found("offline", tally))
        result = result_of(subject, wanted, origin.traffic or origin.data, account, found, checks)
    return write_reports(result, report=report, junit=junit)


def _compare(
    context: Context, subject: Subject, model: Model, pairs: Sequence[Pair], origin: Origin
) -> Account | None:
    most = origin.sample or MOST_REQUESTS
    account = None
    cases: Iterator[Case]
    if origin.data is not None:
        cases = cases_in(origin.data, model, most, left_out(context, subject.package))
    else:
        assert origin.traffic is not None  # noqa: S101 - whoever asks has named one
        span = time_span(origin.since, origin.until, now=context.clock())
        reading = make_reading(subject, log_format=origin.log_format, assume_tz=origin.assume_tz)
        records, stats = open_log(
            origin.traffic, reading, model=subject.name, since=span.since, until=span.until
        )
        account = Account(stats)
        digest = subject.package.digest
        cases = map(case_of, replayable(records, account, digest=digest, sample=most))
    with context.progress.stage("answering", most) as advance:
        for done in run_pairs(pairs, cases):
            advance(done)
    return account


def _offline(context: Context, subject: Subject, model: Model, path: Path, most: int | None) -> Tally:
    tally = Tally()
    beside = left_out(context, subject.package)
    with context.progress.stage(f"comparing {path.name}", most) as advance:
        compare_offline(model, path, tally, beside=beside, most=most, advance=advance)
    return tally
