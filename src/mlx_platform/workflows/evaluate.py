"""`mlx eval`: measure a model on labelled rows, compare it with a baseline, judge its gates."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from mlx_platform.core.errors import MlxError
from mlx_platform.core.report import Result
from mlx_platform.evaluation.custom import custom_metrics
from mlx_platform.evaluation.gates import DatasetRules, GateFile, check_task
from mlx_platform.evaluation.truth import score
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.answerer import Running
from mlx_platform.workflows.evaluation.asking import asked_of, evaluated_task, with_defaults
from mlx_platform.workflows.evaluation.baseline import open_others
from mlx_platform.workflows.evaluation.comparing import compare_all
from mlx_platform.workflows.evaluation.findings import Findings, evidence_of
from mlx_platform.workflows.evaluation.latency import with_latency
from mlx_platform.workflows.evaluation.looking import looks_at, note_look
from mlx_platform.workflows.evaluation.report import result_of
from mlx_platform.workflows.evaluation.rows import answer_rows
from mlx_platform.workflows.evaluation.selftest import self_test
from mlx_platform.workflows.evaluation.slicing import asked_slices, judge_all
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_subject


def evaluate(
    context: Context,
    ref: str,
    *,
    data: Path,
    against: str | None = None,
    gates: Path | None = None,
    gate_expressions: tuple[str, ...] = (),
    slices: tuple[str, ...] = (),
    label: str | None = None,
    columns: DatasetRules | None = None,
    aa: bool = False,
    running: Running | None = None,
    report: Path | None = None,
    junit: Path | None = None,
    metrics: Path | None = None,
) -> Result:
    """Measure a model, compare it and judge its gates; the outcome is kept with a registered version.

    Args:
        context: the command's context.
        ref: a registered version, or an unregistered file.
        data: labelled rows.
        against: the baseline, by default what production serves under the same name.
        gates: a gate file. Without it and without expressions the gates of the settings count; where
            there are none either, the model may not be worse than its baseline.
        gate_expressions: such as `accuracy>=0.9` or `accuracy:max_drop=1pp`.
        slices: columns whose slices are shown, such as `lang` or `lang,device`.
        label: the column of the truth.
        columns: what else the command line says about the data.
        aa: judge the model against copies of itself instead, to see how often the gates fail by chance.
        running: how the models run.
        report: a folder for the report.
        junit: a file for the JUnit XML.
        metrics: a file for the numbers as OpenMetrics text.

    Returns:
        A result whose verdict is undecided unless at least one gate was decided.

    Raises:
        UsageError: gates, columns or labels cannot be used.
        NotFoundError: no such version, file or baseline.
        UndecidedError: no rows, or a model whose outputs have no known meaning.
    """
    check_targets(report=report, junit=junit, metrics=metrics)
    said = columns or DatasetRules()
    custom = custom_metrics(context.settings.evaluation.metrics, context.settings.folder)
    asked = asked_of(
        context.settings, gates, gate_expressions, replace(said, label=label or said.label), custom
    )
    shown = asked_slices(slices)
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(context, ref))
        task = _task(subject, asked)
        check_task(asked.gates, task, labels=subject.package.spec.labels or None, custom=custom)
        others = open_others(context, stack, subject, against=against, asked=asked)
        rows, answered = answer_rows(
            context,
            data,
            asked.dataset,
            (subject, *others.all),
            slices=tuple(dict.fromkeys((*asked.slice_columns, *(name for by in shown for name in by)))),
            running=running,
        )
        compared = compare_all(
            context, subject, others, rows, answered, asked=asked, task=task, custom=custom
        )
        default = not asked.gates and not asked.source and compared.comparison is not None
        asked = with_defaults(asked, task) if default else asked
        if aa:
            return self_test(
                context, subject, compared, rows, asked, report=report, junit=junit, metrics=metrics
            )
        compared = with_latency(
            context, data, subject, others.baseline, compared, asked=asked, running=running or Running()
        )
        judged, sliced = judge_all(context, compared, rows.slices or {}, asked, shown)
        findings = Findings(subject, rows, asked, compared, judged, sliced, default_gates=default)
        findings = replace(findings, looks=looks_at(context, findings))
    result = _kept(context, findings, data)
    return write_reports(result, report=report, junit=junit, metrics=metrics)


def _task(subject: Subject, asked: GateFile) -> str:
    task = evaluated_task(subject.package.spec.task, asked.dataset)
    if task == "tensors":
        # Refused before the model has worked through all rows for nothing.
        score(task, np.zeros(1), {})
    return task


def _kept(context: Context, findings: Findings, data: Path) -> Result:
    """The result, once its evidence is kept with the version.

    A registry that cannot be written takes nothing of what was measured: the reports are still to come, and
    a gate that did not pass keeps its exit code.
    """
    subject, version = findings.subject, findings.subject.version
    evidence = evidence_of(findings, context.clock, data=context.settings.written(data))
    recorded = version is not None and subject.sealed and findings.measured
    refused = None
    if recorded and version is not None:
        try:
            # A look counts even if its outcome cannot be kept.
            note_look(context, findings)
            context.catalog.record(version, evidence)
        except MlxError as error:
            refused = error
    result = result_of(findings, evidence.id if recorded and refused is None else None)
    result = replace(result, warnings=(*result.warnings, *subject.warnings))
    if refused is None:
        return result
    message = f"The outcome was not kept with {subject.ref}: {refused.message}"
    return replace(result, warnings=(*result.warnings, message), code=result.exit_code or refused.exit_code)
