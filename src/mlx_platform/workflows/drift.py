"""`mlx drift`: has the traffic moved away from what the model was trained on?"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.span import time_span
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.drift.verdict import FailOn
from mlx_platform.drift.watched import watched
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.baseline import Sources, find_baseline
from mlx_platform.workflows.drifting.counting import count_window
from mlx_platform.workflows.drifting.evidently import Rows, check_evidently, with_evidently
from mlx_platform.workflows.drifting.gauges import gauges_of
from mlx_platform.workflows.drifting.judged import judge
from mlx_platform.workflows.drifting.kept import kept_window
from mlx_platform.workflows.drifting.notify import listeners, with_notice
from mlx_platform.workflows.drifting.outcome import Outcome, result_of
from mlx_platform.workflows.drifting.window import make_cut
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.reports.metrics_text import metrics_text
from mlx_platform.workflows.reports.pushgateway import check_gateway, push
from mlx_platform.workflows.reports.write import attempt, check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_subject

_JOB = "mlx_drift"


def measure_drift(
    context: Context,
    ref: str | None = None,
    *,
    baseline: Path | None = None,
    reference: Path | None = None,
    baseline_since: str | None = None,
    baseline_until: str | None = None,
    traffic: Path,
    since: str | None = None,
    until: str | None = None,
    every: str | None = None,
    zone: str | None = None,
    by: str | None = None,
    arm: str | None = None,
    entity: str | None = None,
    fail_on: str = "drift",
    explain: str | None = None,
    notify: bool = False,
    textfile: Path | None = None,
    pushgateway: str | None = None,
    evidently: bool = False,
    report: Path | None = None,
    junit: Path | None = None,
    log_format: str | None = None,
    assume_tz: str | None = None,
) -> Result:
    """Compare a window of traffic with a baseline, feature by feature.

    Args:
        context: the command's context.
        ref: the version whose traffic and baseline are meant; None compares two files column by column.
        baseline: a profile (`.json`), reference rows or a log, instead of the profile in the package.
        reference: rows or a log that are counted on the bins of the baseline, to compare with them.
        baseline_since: the first moment of a baseline or reference that is a log.
        baseline_until: the moment after its last.
        traffic: a traffic log, ours or another platform's, counts that were kept, or a plain data file whose
            rows are inputs.
        since: the window's first moment, RFC 3339 or an age such as `24h`.
        until: the moment after its last.
        every: also judge windows of this length, such as `1h`.
        zone: on whose calendar these are cut; UTC by default.
        by: `arm` or `version`, each of which then gets a result of its own.
        arm: only what this arm answered.
        entity: only what this server or model answered, in the words of a log of others.
        fail_on: `drift`, or `warn` to fail on warnings as well.
        explain: a feature whose numbers are worked out step by step.
        notify: tell the sinks of the settings once the traffic begins to drift, and once it is over.
        textfile: a file for the numbers as Prometheus' node exporter collects them.
        pushgateway: the address of a Prometheus Pushgateway that gets them.
        evidently: also write Evidently's own page into the report's folder, and its scores beside ours.
        report: a folder for the report.
        junit: a file for JUnit XML.
        log_format: of the traffic log; None finds it out.
        assume_tz: the zone of times in the log that name none.

    Returns:
        FAIL when features drifted, as the policy of the settings has it; ERROR when one could not be
        compared; UNDECIDED when the window holds too few rows to tell; else PASS.

    Raises:
        UsageError: neither a version nor a baseline, or a flag that cannot be used.
        NotFoundError: no such version, file or folder.
        UndecidedError: the version has no baseline.
    """
    check_targets(report=report, junit=junit, metrics=textfile, metrics_flag="--textfile")
    _check_fail_on(fail_on)
    if pushgateway is not None:
        check_gateway(pushgateway)
    check_evidently(wanted=evidently, report=report, baseline=baseline)
    if ref is None and baseline is None and reference is None:
        raise UsageError(
            "There is nothing to compare with.", hint="Name a version, or rows or a profile with --baseline."
        )
    now = context.clock()
    earlier = time_span(baseline_since, baseline_until, now=now)
    sources = Sources(baseline, reference, earlier, assume_tz)
    cut = make_cut(time_span(since, until, now=now), every=every, zone=zone, by=by, arm=arm, entity=entity)
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(context, ref)) if ref is not None else None
        told_of = _version_to_tell_of(context, subject) if notify else None
        against = find_baseline(context, subject, sources)
        look = watched(subject.package if subject else None, against.profile)
        names = tuple(feature.name for feature in against.profile.of_role("input"))
        reading = make_reading(subject, names, log_format=log_format, assume_tz=assume_tz)
        window = kept_window(traffic, against.profile, cut)
        if window is None:
            window = count_window(context, subject, against.profile, look, traffic, cut, reading)
        elif evidently:
            raise UsageError("Evidently compares rows, and counts that were kept hold none.")
        window.roles = tuple(role for role in window.roles if role in against.roles)
        settings, fails = context.settings.drift, cast("FailOn", fail_on)
        groups = judge(window, settings, fails, now=context.clock())
        outcome = Outcome(subject, against, window, groups, settings, fails)
        result = result_of(outcome, explain)
        if evidently and report and baseline:
            result = with_evidently(context, result, outcome, Rows(look, baseline, traffic, reading), report)
    gauges = gauges_of(subject, groups, cut.by, context.clock())
    result = replace(result, report=replace(result.report, gauges=gauges))
    if told_of is not None:
        result = with_notice(context, result, told_of, outcome)
    if pushgateway is not None:
        of = {"model": subject.name} if subject else {}
        result = attempt(result, lambda: push(pushgateway, metrics_text(gauges), _JOB, of))
    return write_reports(result, report=report, junit=junit, metrics=textfile)


def _version_to_tell_of(context: Context, subject: Subject | None) -> Version:
    if subject is None or subject.version is None:
        raise UsageError(
            "--notify is about a registered version, whose state it keeps.",
            hint="Name one: mlx drift NAME@production --traffic DIR --notify",
        )
    listeners(context, subject.name)
    return subject.version


def _check_fail_on(fail_on: str) -> None:
    if fail_on not in get_args(FailOn):
        raise UsageError(
            f"--fail-on takes drift or warn, not {printable(fail_on, 40)!r}.",
            hint=did_you_mean(fail_on, get_args(FailOn)),
        )
