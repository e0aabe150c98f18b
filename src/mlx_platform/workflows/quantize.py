"""`mlx quantize`: a version becomes a smaller, faster one, if its answers stay as good."""

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import write_atomic
from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.quantization.coverage import baseline_of, cover
from mlx_platform.workflows.quantization.judgement import (
    Answered,
    accuracy_gate,
    check_speedup,
    judge_pair,
)
from mlx_platform.workflows.quantization.outcome import Outcome, evidence_of, lineage_of
from mlx_platform.workflows.quantization.page import result_of
from mlx_platform.workflows.quantization.rows import Rows, feeds, read_rows
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_model, open_subject

if TYPE_CHECKING:
    from mlx_platform.core.tensors import Columns
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import Package
    from mlx_platform.quantize.rule import Rule
    from mlx_platform.quantize.static import Quantized


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for; see `quantize`."""

    calibration: Path
    data: Path
    label: str | None
    max_drop: str | None
    min_speedup: float | None
    output: Path | None
    rule: "Rule"


def quantize(
    context: Context,
    ref: str,
    *,
    calibration: Path,
    data: Path,
    label: str | None = None,
    max_drop: str | None = None,
    min_speedup: float | None = None,
    output: Path | None = None,
    report: Path | None = None,
    junit: Path | None = None,
    calibration_method: str = "minmax",
) -> Result:
    """Quantize a model to static INT8 and register it as a version of its own, if it passes.

    Args:
        context: the command's context.
        ref: a registered version, or an `.onnx` file, which needs `output`.
        calibration: a few hundred rows as production sends them; labels are not looked at.
        data: other rows with labels, which decide whether the answers are still as good.
        label: the column of the labels, by default the one of the settings.
        max_drop: the tolerated loss of accuracy (for regression: rise of the RMSE) with its unit; by default
            1pp, for regression 2%rel.
        min_speedup: how many times as fast it must be; unset, being slower is a warning only.
        output: where to write the ONNX file as well.
        report: a folder for the report.
        junit: a file for the JUnit XML.
        calibration_method: how the ranges of activations are chosen: minmax, percentile, percentile:99.9 or
            entropy.

    Returns:
        A result that passed carries the version in `data.version`; one that did not registered nothing.

    Raises:
        UsageError: rows or flags cannot be used.
        UndecidedError: INT8 does not apply to this model, or there is nothing to judge it by.
    """
    from mlx_platform.quantize.rule import parse_rule

    check_targets(report=report, junit=junit)
    rule = parse_rule(calibration_method)
    request = Request(calibration, data, label, max_drop, min_speedup, output, rule)
    _check(request, ref)
    with open_subject(context, ref) as subject:
        if subject.version is None and output is None:
            raise UsageError(
                f"{printable(subject.source)} is not registered, so its quantized form needs a place.",
                hint="Name one with -o model.int8.onnx, or register the model first.",
            )
        with tempfile.TemporaryDirectory(prefix="mlx-quantize-") as folder:
            outcome = _Run(context, subject, request, Path(folder)).outcome()
    result = result_of(outcome)
    result = replace(result, warnings=(*result.warnings, *subject.warnings))
    return write_reports(result, report=report, junit=junit)


def _check(request: Request, ref: str) -> None:
    check_speedup(request.min_speedup)
    output, source = request.output, Path(ref)
    if output is None:
        return
    if output.is_dir() or output.suffix != ".onnx":
        raise UsageError(f"{output} is no name for an ONNX file.", hint="Write -o model.int8.onnx.")
    if source.is_file() and output.exists() and source.samefile(output):
        raise UsageError(f"{output} is the model that is being quantized.", hint="Write to another file.")


@dataclass(frozen=True, slots=True)
class _Run:
    context: Context
    subject: Subject
    request: Request
    folder: Path

    def outcome(self) -> Outcome:
        self._refuse_unsuitable()
        model = open_model(self.context, self.subject, device="cpu")
        gate = accuracy_gate(model.spec.task, self.request.max_drop)
        request, settings = self.request, self.context.settings.evaluation
        rows = read_rows(settings, request.calibration, request.data, request.label, model.spec.columns)
        before = self._answer(model, rows, "answering in float32")
        drift = self.context.settings.drift
        baseline, unread = baseline_of(self.subject.package, self.subject.ref)
        with self.context.progress.stage("comparing the calibration rows"):
            coverage = cover(
                model,
                rows.calibration.columns,
                rows.judged,
                before.answers,
                drift,
                baseline,
                source=f"the baseline of {self.subject.ref}",
            )
        noted = (*rows.warnings, *((unread,) if unread else ()), *coverage.warnings(drift))
        rows = replace(rows, warnings=noted)
        made = self._quantize(model, rows)
        package = self._package(made)
        smaller = open_model(self.context, replace(self.subject, package=package), device="cpu")
        after = self._answer(smaller, rows, "answering in int8")
        with self.context.progress.stage("comparing"):
            judgement = judge_pair(gate, rows, before, after, self.request.min_speedup)
        outcome = Outcome(self.subject, rows, coverage, made, judgement)
        return self._kept(outcome, package) if judgement.verdict is Verdict.PASS else outcome

    def _refuse_unsuitable(self) -> None:
        """Before any row is read: no data make INT8 apply to a model that has nothing to quantize."""
        from mlx_platform.quantize.inspect import inspect_file, refuse_unsuitable

        refuse_unsuitable(inspect_file(self.subject.package.model_path), self.subject.ref)

    def _answer(self, model: "Model", rows: Rows, stage: str) -> Answered:
        with self.context.progress.stage(stage):
            return Answered(model, model.predict(rows.judged).columns)

    def _quantize(self, model: "Model", rows: Rows) -> "Quantized":
        from mlx_platform.quantize.cache import CalibrationCache
        from mlx_platform.quantize.static import StaticOptions, quantize_static

        settings = self.context.settings
        cache = CalibrationCache(
            settings.path(settings.cache.dir) / "calibration", rows.identity(self.subject.package)
        )
        work = self.folder / "work"
        work.mkdir()
        with self.context.progress.stage("calibrating", total=rows.calibration.rows) as advance:
            return quantize_static(
                self.subject.package.model_path,
                work,
                feeds(model, rows.calibration),
                list(feeds(model, rows.calibration.first())),
                StaticOptions(self.request.rule, cache, threads=model.session.threads),
                advance=advance,
                row_name=rows.calibration.name,
                name=self.subject.ref,
            )

    def _package(self, made: "Quantized") -> "Package":
        """The quantized network with its source's pipeline and assets; its golden cases are its own."""
        from mlx_platform.inference.build import BuildOptions, build_package
        from mlx_platform.inference.package import MODEL, SPEC

        source, folder = self.subject.package, self.folder / "source"
        folder.mkdir()
        shutil.copyfile(made.path, folder / MODEL)
        shutil.copyfile(source.root / SPEC, folder / SPEC)
        for entry in source.manifest.files:
            if entry.path.startswith("assets/"):
                target = folder / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source.root / entry.path, target)
        baseline = source.baseline_path.read_bytes() if source.baseline_path else None
        with self.context.progress.stage("sealing"):
            return build_package(
                folder,
                self.folder / "package",
                BuildOptions(baseline=baseline),
                seed_rows=_golden_rows(source),
            ).package

    def _kept(self, outcome: Outcome, package: "Package") -> Outcome:
        """Register the package under its source's name, and write the file where one was asked for."""
        catalog, source = self.context.catalog, self.subject.version
        version, created = None, False
        if source is not None:
            lineage = lineage_of(self.context, outcome, source)
            version, created = catalog.register(source.name, package, lineage)
            catalog.record(version, evidence_of(outcome, version, self.context.clock()))
        if self.request.output is not None:
            write_atomic(self.request.output, outcome.made.path.read_bytes())
        return replace(outcome, version=version, created=created, output=self.request.output)


def _golden_rows(source: "Package") -> "Columns | None":
    """The inputs of the source's golden cases: a package travels, and calibration rows must not."""
    cases = [case.rows() for case in source.golden()]
    wanted = set(source.spec.columns) or (set(cases[0]) if cases else set())
    if not cases or any(set(case) != wanted for case in cases):
        return None
    return {name: np.concatenate([case[name] for case in cases]) for name in cases[0]}
