"""`mlx eval`: measure a model on labelled rows, compare it with a baseline, judge its gates."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.errors import UsageError
from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.evaluation.compare import compare
from mlx_platform.evaluation.gate_file import read_gates
from mlx_platform.evaluation.gate_parser import parse_expression
from mlx_platform.evaluation.gates import DatasetRules, GateFile, check_contradictions, check_task
from mlx_platform.evaluation.judge import Known, judge
from mlx_platform.evaluation.measure import Measurement, measure_scored
from mlx_platform.evaluation.truth import score
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.baseline import baseline_reference
from mlx_platform.workflows.evaluation.findings import Baseline, Findings, evidence_of
from mlx_platform.workflows.evaluation.report import result_of
from mlx_platform.workflows.evaluation.rows import Answered, Rows, answer, labelled_rows
from mlx_platform.workflows.reports.write import write_reports
from mlx_platform.workflows.subject import Subject, open_subject

if TYPE_CHECKING:
    from mlx_platform.evaluation.scored import Scored

_DEFAULT_GATES = {
    "classification": "accuracy:max_drop=1pp",
    "multilabel": "subset_accuracy:max_drop=1pp",
    "regression": "rmse:max_rise=2%rel",
    "ranking": "ndcg@10:max_drop=1pp",
}


def evaluate(
    context: Context,
    ref: str,
    *,
    data: Path,
    against: str | None = None,
    gates: Path | None = None,
    gate_expressions: tuple[str, ...] = (),
    label: str | None = None,
    report: Path | None = None,
    junit: Path | None = None,
) -> Result:
    """Measure a model, compare it and judge its gates; the outcome is kept with a registered version.

    Args:
        context: the command's context.
        ref: a registered version, or an unregistered file.
        data: labelled rows.
        against: the baseline, by default what production serves under the same name.
        gates: a gate file. Without it and without expressions the file that the settings name counts; where
            there is none either, the model may not be worse than its baseline.
        gate_expressions: such as `accuracy>=0.9` or `accuracy:max_drop=1pp`.
        label: the column of the truth.
        report: a folder for the report.
        junit: a file for the JUnit XML.

    Returns:
        A result whose verdict is undecided unless at least one gate was decided.

    Raises:
        UsageError: gates, columns or labels cannot be used.
        NotFoundError: no such version, file or baseline.
        UndecidedError: no rows, or a model whose outputs have no known meaning.
    """
    from mlx_platform.inference.dataset import read_dataset

    asked = _asked(context, gates, gate_expressions)
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(context, ref))
        spec = subject.package.spec
        check_task(asked.gates, spec.task)
        rows = labelled_rows(
            read_dataset(data),
            asked.dataset,
            context.settings.evaluation,
            label=label,
            inputs=spec.columns,
        )
        other = _open_baseline(context, stack, subject, against, asked.baseline)
        findings = _find(context, subject, other, rows, asked)
    evidence = evidence_of(findings, context.clock, data=_from_folder(data, context.settings.folder))
    recorded = subject.sealed and findings.measured
    result = result_of(findings, evidence.id if recorded else None)
    result = replace(result, warnings=(*result.warnings, *subject.warnings))
    # Reports first: a registry that cannot be written must not take what was measured with it.
    write_reports(result, report=report, junit=junit)
    if subject.version is not None and recorded:
        context.catalog.record(subject.version, evidence)
    return result


def _from_folder(path: Path, folder: Path) -> str:
    """A path as somebody writes it who works in the settings' folder, where it lies within."""
    whole = path.resolve()
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(path)


def _asked(context: Context, gates: Path | None, expressions: tuple[str, ...]) -> GateFile:
    named = context.settings.evaluation.gates
    own = read_gates(context.settings.path(named)) if named else GateFile()
    asked = read_gates(gates) if gates else own
    # Flags come on top: a weaker file or expression must not take the project's own gates away, nor judge
    # them by easier rules, on easier data or against no baseline.
    rules = own if named else asked
    together = tuple(dict.fromkeys((*own.gates, *asked.gates, *map(parse_expression, expressions))))
    check_contradictions(together)
    return replace(rules, gates=together, dataset=_dataset(rules, asked), source=asked.source)


def _dataset(rules: GateFile, asked: GateFile) -> DatasetRules:
    ours, theirs = rules.dataset, asked.dataset
    return DatasetRules(
        path=ours.path or theirs.path,
        id=ours.id or theirs.id,
        label=ours.label or theirs.label,
        sha256=ours.sha256 or theirs.sha256,
        min_rows=max(ours.min_rows, theirs.min_rows),
    )


def _open_baseline(
    context: Context, stack: ExitStack, subject: Subject, against: str | None, named: str
) -> Subject | None:
    ref = baseline_reference(context, subject, against=against, named=named)
    if ref is None:
        return None
    other = stack.enter_context(open_subject(context, ref))
    task, wanted = other.package.spec.task, subject.package.spec.task
    if task != wanted:
        raise UsageError(
            f"{printable(other.ref)} is a model for {task}: it cannot be the baseline of one for {wanted}."
        )
    return other


def _find(context: Context, subject: Subject, other: Subject | None, rows: Rows, asked: GateFile) -> Findings:
    task = subject.package.spec.task
    if task == "tensors":
        # Refused before the model has worked through all rows for nothing.
        score(task, rows.truth, {})
    confidence, seed = asked.defaults.confidence, asked.defaults.seed
    answered = answer(context, subject, rows.features)
    scored, labels = (
        score(task, rows.truth, answered.columns, answered.labels, column=rows.label),
        answered.labels,
    )
    baseline = comparison = None
    if other is not None:
        identical = other.package.digest == subject.package.digest
        others = answered if identical else _answer_baseline(context, other, rows)
        labels = (*labels, *(label for label in others.labels if label not in labels))
        scored, other_scored = (_score_among(task, rows, side, labels) for side in (answered, others))
        with context.progress.stage(f"comparing with {other.ref}"):
            measured = measure_scored(other_scored, confidence=confidence, seed=seed)
            comparison = compare(scored, other_scored, confidence=confidence, seed=seed, identical=identical)
        baseline = Baseline(other.ref, other.package.digest, other_scored, measured)
    with context.progress.stage("measuring"):
        measurements = measure_scored(scored, confidence=confidence, seed=seed)
    measurements["model_size_mb"] = _size(subject, scored.rows)
    default = not asked.gates and not asked.source and comparison is not None
    if default:
        asked = replace(asked, gates=(parse_expression(_DEFAULT_GATES[task]),))
    judged = judge(asked.gates, Known(measurements, comparison), asked.defaults)
    return Findings(
        subject,
        rows,
        labels,
        asked,
        scored,
        measurements,
        baseline,
        comparison,
        judged,
        default_gates=default,
    )


def _score_among(task: str, rows: Rows, answered: Answered, labels: tuple[str, ...]) -> "Scored":
    return score(task, rows.truth, answered.columns, answered.labels, among=labels, column=rows.label)


def _answer_baseline(context: Context, other: Subject, rows: Rows) -> Answered:
    try:
        return answer(context, other, rows.features)
    except UsageError as error:
        message = f"The baseline {printable(other.ref)} cannot answer these rows. {error.message}"
        raise UsageError(message, hint=error.hint, **error.details) from error


def _size(subject: Subject, rows: int) -> Measurement:
    nan = float("nan")
    return Measurement("model_size_mb", subject.package.size / 1e6, nan, nan, rows, "MB", False)
