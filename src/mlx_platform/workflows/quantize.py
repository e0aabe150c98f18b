"""`mlx quantize`: a version becomes a smaller, faster one, if its answers stay as good."""

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.files import staged
from mlx_platform.core.report import Result
from mlx_platform.core.text import printable
from mlx_platform.core.verdict import Verdict
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.quantization.candidates import STATIC, Candidate, Workshop
from mlx_platform.workflows.quantization.choosing import Choosing
from mlx_platform.workflows.quantization.coverage import ANSWERED, Coverage, baseline_of, check_names, cover
from mlx_platform.workflows.quantization.judgement import Answered, Bench, accuracy_gate
from mlx_platform.workflows.quantization.outcome import Outcome, evidence_of, lineage_of
from mlx_platform.workflows.quantization.page import result_of
from mlx_platform.workflows.quantization.request import FOR_SIZE, MAX_EVALS, MAX_MINUTES, Request
from mlx_platform.workflows.quantization.rows import Rows, about, read_rows
from mlx_platform.workflows.reports.write import check_targets, write_reports
from mlx_platform.workflows.subject import Subject, open_model, open_subject
from mlx_platform.workflows.tools import tool_versions

if TYPE_CHECKING:
    from mlx_platform.core.tensors import Columns
    from mlx_platform.evaluation.gates import Gate
    from mlx_platform.inference.model import Model
    from mlx_platform.inference.package import Package


def quantize(
    context: Context,
    ref: str,
    *,
    calibration: Path,
    data: Path,
    label: str | None = None,
    method: str = STATIC,
    target: str = "auto",
    max_drop: str | None = None,
    min_speedup: float | None = None,
    max_size_ratio: float = 1.0,
    max_evals: int = MAX_EVALS,
    max_minutes: float = MAX_MINUTES,
    resume: Path | None = None,
    keep_failed: bool = False,
    output: Path | None = None,
    report: Path | None = None,
    junit: Path | None = None,
    calibration_method: str = "minmax",
) -> Result:
    """Make a model smaller and register the result as a version of its own, if it passes.

    Args:
        context: the command's context.
        ref: a registered version, or an `.onnx` file, which needs `output`.
        calibration: a few hundred rows as production sends them; labels are not looked at.
        data: other rows with labels, which decide whether the answers are still as good.
        label: the column of the labels, by default the one of the settings.
        method: static, dynamic, fp16 or int4; auto measures all of them.
        target: the processor family it is for: auto, x86-avx2, x86-vnni or arm.
        max_drop: the tolerated loss of accuracy (for regression: rise of the RMSE) with its unit; by default
            that of the settings, else 1pp, for regression 2%rel.
        min_speedup: how many times as fast it must be, 0 for any speed; see `Wishes` for what is expected
            where it is unset.
        max_size_ratio: its largest size as a share of the source's.
        max_evals: candidates that the search for layers to leave in float32 may measure; 0 for no search.
        max_minutes: how long that search may take.
        resume: a folder with the state of an interrupted search, or for that of this one.
        keep_failed: write `output` although a gate failed; nothing is registered all the same.
        output: where to write the ONNX file as well.
        report: a folder for the report.
        junit: a file for the JUnit XML.
        calibration_method: how the ranges of activations are chosen: minmax, percentile, percentile:99.9 or
            entropy.

    Returns:
        A result that passed carries the version in `data.version`; one that did not registered nothing.

    Raises:
        UsageError: rows or flags cannot be used.
        UndecidedError: no method applies to this model, or there is nothing to judge it by.
    """
    from mlx_platform.quantize.rule import parse_rule
    from mlx_platform.quantize.search import Limits
    from mlx_platform.quantize.target import parse_target
    from mlx_platform.workflows.quantization.wishes import Wishes

    check_targets(report=report, junit=junit)
    request = Request(
        ref=ref,
        calibration=calibration,
        data=data,
        label=label,
        method=method,
        target=parse_target(target),
        rule=parse_rule(calibration_method),
        max_drop=max_drop,
        wishes=Wishes(min_speedup, max_size_ratio, for_size=method in FOR_SIZE),
        limits=Limits(max_evals, 60 * max_minutes),
        resume=resume,
        keep_failed=keep_failed,
        output=output,
    )
    request.check()
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


@dataclass(frozen=True, slots=True)
class _Run:
    context: Context
    subject: Subject
    request: Request
    folder: Path

    def outcome(self) -> Outcome:
        from mlx_platform.quantize.state import open_state

        self._refuse_unsuitable()
        model = open_model(self.context, self.subject, device="cpu")
        request, settings = self.request, self.context.settings
        gate = accuracy_gate(model.spec.task, request.max_drop, settings.quantization)
        rows = read_rows(
            settings.evaluation, request.calibration, request.data, request.label, model.spec.columns
        )
        with self.context.progress.stage("answering in float32"), about(rows.path):
            before = Answered(model, model.predict(rows.judged).columns)
        bench = Bench(gate, rows, before)
        coverage, rows = self._coverage(model, rows, before)
        work = self.folder / "work"
        work.mkdir()
        workshop = Workshop(self.context, self.subject, model, rows, request, work)
        with open_state(request.resume, self._key(rows, gate)) as state:
            choosing = Choosing(workshop, bench, state)
            chosen = choosing.choose(lambda candidate: self._answers(candidate, rows))
        outcome = Outcome(self.subject, request, rows, coverage, choosing, chosen)
        return self._kept(outcome)

    def _refuse_unsuitable(self) -> None:
        """Before any row is read: no data make a method apply to a model that has nothing for it."""
        from mlx_platform.quantize.inspect import inspect_file, refuse_unsuitable

        refuse_unsuitable(
            inspect_file(self.subject.package.model_path), self.subject.ref, self.request.methods
        )

    def _coverage(self, model: "Model", rows: Rows, before: Answered) -> tuple[Coverage, Rows]:
        drift = self.context.settings.drift
        baseline, unread = baseline_of(self.subject.package, self.subject.ref)
        source = f"the baseline of {self.subject.ref}"
        renamed = check_names(model, rows.calibration.columns, baseline, source)
        answered = rows.calibration.spread(ANSWERED)
        with self.context.progress.stage("comparing the calibration rows"):
            with answered.named():
                met = model.predict(answered.columns).columns
            coverage = cover(
                model,
                rows.calibration.columns,
                rows.judged,
                met,
                before.answers,
                drift,
                baseline,
                source=source,
            )
        noted = (*rows.warnings, *filter(None, (unread, renamed)), *coverage.warnings(drift))
        return coverage, replace(rows, warnings=noted)

    def _key(self, rows: Rows, gate: "Gate") -> str:
        """Everything that what a search measures and what the judging rows say depends on."""
        from mlx_platform.quantize.state import key_of

        request = self.request
        return key_of(
            self.subject.package.content_digest,
            rows.identity(self.subject.package),
            rows.fingerprints["data"],
            rows.label,
            self.context.settings.evaluation.weight,
            gate.name,
            request.method,
            request.target,
            request.rule,
            *sorted(tool_versions().items()),
        )

    def _answers(self, candidate: Candidate, rows: Rows) -> "tuple[Package, Columns]":
        """The candidate as a sealed package, and what that answers to the judged rows."""
        package = self._package(candidate)
        smaller = open_model(self.context, replace(self.subject, package=package), device="cpu")
        with self.context.progress.stage(f"judging {candidate.name}"):
            return package, smaller.predict(rows.judged).columns

    def _package(self, candidate: Candidate) -> "Package":
        """The smaller network with its source's pipeline and assets; its golden cases are its own."""
        from mlx_platform.inference.build import BuildOptions, build_package
        from mlx_platform.inference.package import SPEC

        source = self.subject.package
        folder = Path(tempfile.mkdtemp(prefix="source-", dir=self.folder))
        for path in candidate.made.files:
            shutil.copyfile(path, folder / path.name)
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
                folder.with_name(folder.name.replace("source-", "package-")),
                BuildOptions(baseline=baseline),
                seed_rows=_golden_rows(source),
            ).package

    def _kept(self, outcome: Outcome) -> Outcome:
        """Register a candidate that passed under its source's name; write the file where it is wanted."""
        passed = outcome.judgement.verdict is Verdict.PASS
        catalog, source = self.context.catalog, self.subject.version
        version, created = None, False
        wanted = self.request.output if passed or self.request.keep_failed else None
        # Written first and put in place last: what cannot be written registers nothing, and the other way.
        with ExitStack() as stack:
            if wanted is not None:
                self._stage(outcome.candidate, wanted, stack)
            if passed and source is not None:
                lineage = lineage_of(self.context, outcome, source)
                version, created = catalog.register(source.name, outcome.chosen.package, lineage)
                catalog.record(version, evidence_of(self.context, outcome, version))
        return replace(outcome, version=version, created=created, output=wanted)

    def _stage(self, candidate: Candidate, output: Path, stack: ExitStack) -> None:
        """Write the file that was asked for; weights beside it keep the name that the file knows them by."""
        model, *weights = candidate.made.files
        stack.enter_context(staged(output, model.read_bytes()))
        for path in weights:
            stack.enter_context(staged(output.with_name(path.name), path.read_bytes()))


def _golden_rows(source: "Package") -> "Columns | None":
    """The inputs of the source's golden cases: a package travels, and calibration rows must not."""
    cases = [case.rows() for case in source.golden()]
    wanted = set(source.spec.columns) or (set(cases[0]) if cases else set())
    if not cases or any(set(case) != wanted for case in cases):
        return None
    return {name: np.concatenate([case[name] for case in cases]) for name in cases[0]}
