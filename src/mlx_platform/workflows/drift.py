"""`mlx drift`: has the traffic moved away from what the model was trained on?"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Report, Result
from mlx_platform.core.settings import DriftSettings
from mlx_platform.core.span import time_span
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.verdict import Verdict, worst
from mlx_platform.drift.verdict import FailOn, Level, level_counts
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.drifting.baseline import Baseline, Sources, find_baseline
from mlx_platform.workflows.drifting.counting import count_window
from mlx_platform.workflows.drifting.explain import chosen, explained, explanation
from mlx_platform.workflows.drifting.judged import Group, judge
from mlx_platform.workflows.drifting.kept import kept_window
from mlx_platform.workflows.drifting.page import draw, worst_first
from mlx_platform.workflows.drifting.trend import side_by_side, with_trend
from mlx_platform.workflows.drifting.watched import watched
from mlx_platform.workflows.drifting.window import Window, make_cut
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_subject


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
    _check_fail_on(fail_on)
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
        against = find_baseline(context, subject, sources)
        window = kept_window(traffic, against.profile, cut)
        if window is None:
            look = watched(subject.package if subject else None, against.profile)
            names = tuple(feature.name for feature in against.profile.of_role("input"))
            reading = make_reading(subject, names, log_format=log_format, assume_tz=assume_tz)
            window = count_window(context, subject, against.profile, look, traffic, cut, reading)
        window.roles = tuple(role for role in window.roles if role in against.roles)
    result = _result(context, subject, against, window, cast("FailOn", fail_on), explain)
    return write_reports(result, report=report, junit=junit)


def _check_fail_on(fail_on: str) -> None:
    if fail_on not in get_args(FailOn):
        raise UsageError(
            f"--fail-on takes drift or warn, not {printable(fail_on, 40)!r}.",
            hint=did_you_mean(fail_on, get_args(FailOn)),
        )


def _result(
    context: Context,
    subject: Subject | None,
    baseline: Baseline,
    window: Window,
    fail_on: FailOn,
    explain: str | None,
) -> Result:
    settings = context.settings.drift
    groups = judge(window, settings, fail_on, now=context.clock())
    by = window.cut.by
    data: dict[str, Any] = {
        "model": subject.document() if subject else None,
        "baseline": {
            "id": baseline.profile.baseline_id,
            "rows": baseline.profile.rows,
            "source": baseline.source,
        },
        "window": window.document(),
        "policy": {**asdict(settings), "fail_on": fail_on},
    }
    if by is None:
        data |= _document(groups[0], settings, explain)
    else:
        data["by"] = by
        data["groups"] = [{by: group.name, **_document(group, settings, explain)} for group in groups]
    pages = [_page(subject, baseline, window, group, settings, fail_on) for group in groups]
    if explain is not None:
        pages = [
            _explained(page, group, settings, explain) for page, group in zip(pages, groups, strict=True)
        ]
    return Result(
        command="drift",
        data=data,
        report=pages[0] if by is None else side_by_side(groups, pages, by),
        verdict=worst(group.verdict for group in groups),
        warnings=(
            *baseline.warnings,
            *window.warnings(),
            *_warnings(baseline, window, groups),
            *(subject.warnings if subject else ()),
        ),
    )


def _explained(page: Report, group: Group, settings: DriftSettings, name: str) -> Report:
    found = group.whole.features
    return explained(page, chosen(found, name), settings, len(found)) if found else page


def _document(group: Group, settings: DriftSettings, explain: str | None) -> dict[str, Any]:
    found = worst_first(group.whole.features)
    document: dict[str, Any] = {
        "rows": group.whole.rows,
        "verdict": str(group.verdict),
        "verdict_counts": level_counts(found),
        "features": [feature.document() for feature in found],
    }
    if explain is not None and found:
        document["explanation"] = explanation(chosen(found, explain), settings)
    if group.trend:
        document["windows"] = [each.document() for each in group.trend]
        document["latest"] = group.latest.span.document() if group.latest else None
    return document


def _page(
    subject: Subject | None,
    baseline: Baseline,
    window: Window,
    group: Group,
    settings: DriftSettings,
    fail_on: FailOn,
) -> Report:
    page = draw(subject, baseline, window, worst_first(group.whole.features), settings, fail_on)
    return with_trend(page, group, window.cut.grid) if window.cut.grid else page


def _warnings(baseline: Baseline, window: Window, groups: Sequence[Group]) -> list[str]:
    warnings = []
    if "output" not in window.roles and baseline.profile.of_role("output"):
        warnings.append("A plain data file holds no answers of the model: only inputs are compared.")
    for group in groups:
        of = f"{group.name}: " if group.name else ""
        found = group.whole.features
        undecided = level_counts(found)[Level.INSUFFICIENT]
        if 0 < undecided < len(found):
            warnings.append(f"{of}{undecided} of {len(found)} features have too few rows to be judged.")
        if group.latest and group.latest.verdict is Verdict.UNDECIDED is not group.whole.verdict:
            warnings.append(
                f"{of}The newest whole window has too few rows to be judged by itself: {group.latest.rows:,}."
            )
    return warnings
