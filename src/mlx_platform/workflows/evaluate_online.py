"""`mlx eval --traffic`: answers measured with labels that came later, against the offline evidence."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from mlx_platform.core.clock import parse_duration, rfc3339
from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UsageError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.report import Result
from mlx_platform.core.span import Grid, Span, make_grid, time_span, time_zone
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.evaluation.custom import custom_metrics
from mlx_platform.evaluation.gates import DatasetRules, check_task
from mlx_platform.evaluation.judge import finite
from mlx_platform.traffic.log import has_segments, read_log
from mlx_platform.traffic.readers.opening import open_log
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.asking import asked_of, evaluated_task
from mlx_platform.workflows.evaluation.slicing import asked_slices
from mlx_platform.workflows.holders import versions_in
from mlx_platform.workflows.online.asked import Asked
from mlx_platform.workflows.online.joined import NOT_LOGGED, OURS, Joined, Joining, join
from mlx_platform.workflows.online.labels import Labels, read_labels
from mlx_platform.workflows.online.measured import Online, Question, measure_online, without_baseline
from mlx_platform.workflows.online.page import (
    checks_of,
)
from mlx_platform.workflows.online.result import Found, result_of
from mlx_platform.workflows.reading import make_reading
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_subject
from mlx_platform.workflows.tools import tool_versions


def evaluate_online(
    context: Context, asked: Asked, *, report: Path | None = None, junit: Path | None = None
) -> Result:
    """Join labels to logged answers, measure them, and compare with what the version was released with.

    Args:
        context: the command's context.
        asked: versions, log, labels and limits.
        report: a folder for the report.
        junit: a file for the JUnit XML.

    Returns:
        FAIL when a metric is shown to differ from its offline value by more than the margin, over all or in a
        window, or a gate fails; UNDECIDED when labels are too few to tell; else PASS. The outcome is kept
        with a registered version as evidence of the kind `online`.

    Raises:
        UsageError: labels, columns, metrics or times that cannot be used.
        NotFoundError: no such version, log or file.
    """
    check_targets(report=report, junit=junit)
    if asked.labels is None and asked.traffic.is_file():
        raise UsageError(
            f"{asked.traffic} is a file: there is no feedback beside it.",
            hint="Name the labels: --labels FILE",
        )
    span = time_span(asked.since, asked.until, now=context.clock())
    grid = make_grid(asked.every, time_zone(asked.zone))
    patience = parse_duration(asked.patience) if asked.patience else None
    found, broken = [], []
    refs = versions_in(context, asked.ref, span)
    for place, ref in enumerate(refs):
        try:
            found.append(_version(context, asked, ref, span, grid, patience))
        except (NotFoundError, IntegrityError) as error:
            if place == len(refs) - 1:
                raise
            if _answered_any(asked, ref, span):
                message = error.message
                broken.append(Check("evaluation online", Verdict.ERROR, "", "", message, "online", part=ref))
    answered = [one for one in found if one.online.joined.fates.answered]
    return write_reports(result_of(answered or found[-1:], asked, grid, broken), report=report, junit=junit)


def _answered_any(asked: Asked, ref: str, span: Span) -> bool:
    """Whether a log of ours holds an answer of a version; one that is gone for long is nobody's concern."""
    name, _slash, number = ref.rpartition("/")
    if not has_segments(asked.traffic):
        return False
    records, _stats = read_log(asked.traffic, model=name, version=number, since=span.since, until=span.until)
    return next(records, None) is not None


def _version(
    context: Context, asked: Asked, ref: str, span: Span, grid: Grid, patience: timedelta | None
) -> Found:
    with open_subject(context, ref) as subject:
        question = _question(context, asked, subject)
        labels = read_labels(asked.labels, asked.traffic, asked.label, since=span.since)
        joined = _join(context, asked, subject, question, labels, span, grid, patience)
        offline = context.catalog.evidence(subject.version).get("evaluation") if subject.version else None
        online = measure_online(context, subject, joined, question, offline)
        checks = checks_of(online)
        evidence, problem = _keep(context, asked, online, checks, span)
        return Found(online, labels, checks, evidence, problem)


def _question(context: Context, asked: Asked, subject: Subject) -> Question:
    custom = custom_metrics(context.settings.evaluation.metrics, context.settings.folder)
    said = DatasetRules(positive=asked.positive)
    gates = without_baseline(asked_of(context.settings, asked.gates, asked.gate_expressions, said, custom))
    task = evaluated_task(subject.package.spec.task, gates.dataset)
    check_task(gates.gates, task, labels=subject.package.spec.labels or None, custom=custom)
    if task == "tensors":
        raise UsageError(
            f"{subject.ref} answers tensors of no declared meaning, so no label can be compared with them.",
            hint='Declare task = "classification" or "regression" in its model.toml and register it again.',
        )
    margin = asked.margin or context.settings.evaluation.max_difference
    return Question(task, gates, margin, asked.metrics, asked_slices(asked.slices), custom)


def _join(
    context: Context,
    asked: Asked,
    subject: Subject,
    question: Question,
    labels: Labels,
    span: Span,
    grid: Grid,
    patience: timedelta | None,
) -> Joined:
    from mlx_platform.inference.pipeline import Pipeline

    package, rules = subject.package, question.asked.dataset
    columns = (*(name for by in question.shown for name in by), *question.asked.slice_columns, rules.query)
    wanted = tuple(dict.fromkeys(name for name in columns if name))
    decode = Pipeline(package.spec, package.root).decode
    rule = Joining(package.digest, question.task, decode, grid, wanted, patience)
    reading = make_reading(subject, log_format=asked.log_format, assume_tz=asked.assume_tz)
    records, stats = open_log(asked.traffic, reading, model=subject.name, since=span.since, until=span.until)
    with context.progress.stage("joining labels"):
        joined = join(records, stats, labels, rule)
    _check_columns(joined, subject)
    return joined


def _check_columns(joined: Joined, subject: Subject) -> None:
    """Refuse to slice by what no request has."""
    for name, values in joined.columns.items():
        if len(values) and all(value == NOT_LOGGED for value in values.tolist()):
            spec = subject.package.spec
            known = (*spec.columns, *(tensor.name for tensor in spec.inputs), *OURS)
            raise UsageError(
                f"No request in the log has an input {printable(name, 80)!r}.", hint=did_you_mean(name, known)
            )


def _keep(
    context: Context, asked: Asked, online: Online, checks: Sequence[Check], span: Span
) -> tuple[str | None, MlxError | None]:
    """Record the outcome with a registered version, if anything was measured."""
    version = online.subject.version
    if version is None or not online.subject.sealed or not online.measurements:
        return None, None
    numbers = {
        name: {"value": finite(one.value), "lower": finite(one.lower), "upper": finite(one.upper)}
        for name, one in online.measurements.items()
    }
    evidence = Evidence(
        kind="online",
        digest=online.subject.package.digest,
        verdict=verdict_of(checks),
        created=context.clock(),
        data_fingerprint=online.joined.fingerprint,
        parameters={
            **span.document(),
            "first": rfc3339(online.joined.first) if online.joined.first else None,
            "last": rfc3339(online.joined.last) if online.joined.last else None,
            "rows": online.joined.fates.joined,
            "answered": online.joined.fates.answered,
            "margin": asked.margin,
            "by_settings": not asked.metrics
            and asked.margin in {"", context.settings.evaluation.max_difference},
            "offline": online.offline.id if online.offline else "",
        },
        numbers=numbers
        | {
            "differences": {name: gap.document() for name, gap in online.gaps.items() if gap},
            "gates": [
                {"name": check.title, "verdict": str(check.verdict), "shown": check.measured}
                for check in checks
            ],
        },
        tools=tool_versions(),
    )
    try:
        context.catalog.record(version, evidence)
    except MlxError as error:
        return None, error
    return evidence.id, None
