"""`mlx drift`: has the traffic moved away from what the model was trained on?"""

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.span import time_span
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.drift.verdict import FailOn, FeatureDrift, Level, compare, level_counts, overall
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.baseline import Baseline, find_baseline
from mlx_platform.workflows.drifting.page import draw, worst_first
from mlx_platform.workflows.drifting.watched import watched
from mlx_platform.workflows.drifting.window import Window, count_window
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_subject


def measure_drift(
    context: Context,
    ref: str | None = None,
    *,
    baseline: Path | None = None,
    traffic: Path,
    since: str | None = None,
    until: str | None = None,
    fail_on: str = "drift",
    report: Path | None = None,
    junit: Path | None = None,
    log_format: str | None = None,
    assume_tz: str | None = None,
) -> Result:
    """Compare a window of traffic with a baseline, feature by feature.

    Args:
        context: the command's context.
        ref: the version whose traffic and baseline are meant; None compares two files column by column.
        baseline: a profile (`.json`) or reference rows, instead of the profile in the package.
        traffic: a traffic log, ours or another platform's, or a plain data file whose rows are inputs.
        since: the window's first moment, RFC 3339 or an age such as `24h`.
        until: the moment after its last.
        fail_on: `drift`, or `warn` to fail on warnings as well.
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
    check_targets(report=report, junit=junit)
    if fail_on not in get_args(FailOn):
        raise UsageError(
            f"--fail-on takes drift or warn, not {printable(fail_on, 40)!r}.",
            hint=did_you_mean(fail_on, get_args(FailOn)),
        )
    if ref is None and baseline is None:
        raise UsageError(
            "There is nothing to compare with.", hint="Name a version, or rows or a profile with --baseline."
        )
    span = time_span(since, until, now=context.clock())
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(context, ref)) if ref is not None else None
        against = find_baseline(context, subject, baseline)
        look = watched(subject.package if subject else None, against.profile)
        names = tuple(feature.name for feature in against.profile.of_role("input"))
        reading = make_reading(subject, names, log_format=log_format, assume_tz=assume_tz)
        window = count_window(context, subject, against.profile, look, traffic, span, reading)
    result = _result(context, subject, against, window, cast("FailOn", fail_on))
    return write_reports(result, report=report, junit=junit)


def _result(
    context: Context, subject: Subject | None, baseline: Baseline, window: Window, fail_on: FailOn
) -> Result:
    settings = context.settings.drift
    found: list[FeatureDrift] = []
    if window.counts.rows:
        found = worst_first(compare(baseline.profile, window.counts, settings, roles=window.roles))
    data: dict[str, Any] = {
        "model": subject.document() if subject else None,
        "baseline": {
            "id": baseline.profile.baseline_id,
            "rows": baseline.profile.rows,
            "source": baseline.source,
        },
        "window": window.document(),
        "policy": {**asdict(settings), "fail_on": fail_on},
        "verdict_counts": level_counts(found),
        "features": [feature.document() for feature in found],
    }
    return Result(
        command="drift",
        data=data,
        report=draw(subject, baseline, window, found, settings, fail_on),
        verdict=overall(found, settings, fail_on=fail_on) if found else Verdict.UNDECIDED,
        warnings=(
            *window.warnings(),
            *_warnings(baseline, window, found),
            *(subject.warnings if subject else ()),
        ),
    )


def _warnings(baseline: Baseline, window: Window, found: list[FeatureDrift]) -> list[str]:
    warnings = []
    if "output" not in window.roles and baseline.profile.of_role("output"):
        warnings.append("A plain data file holds no answers of the model: only inputs are compared.")
    undecided = level_counts(found)[Level.INSUFFICIENT]
    if 0 < undecided < len(found):
        warnings.append(f"{undecided} of {len(found)} features have too few rows to be judged.")
    return warnings
