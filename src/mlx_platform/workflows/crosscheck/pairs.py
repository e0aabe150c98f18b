"""Two ways to answer that should make no difference, and how often they did."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.agreement import OTHER_BATCH, Tolerance, compare_answers
from mlx_platform.evaluation.consistency import Tally, judge_agreement
from mlx_platform.inference.model import Model
from mlx_platform.quantize.scales import has_integers, output_scales
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.crosscheck.answering import Answered, Case
from mlx_platform.workflows.crosscheck.elsewhere import Elsewhere, elsewhere, versions
from mlx_platform.workflows.crosscheck.sides import Alone, Crowded, RowByRow, Side, Together
from mlx_platform.workflows.subject import Subject, open_model, open_subject

KINDS = ("batch", "repeat", "device", "int8")
_CHUNK = 64  # requests that are held at a time
_FLOATS = ("FP64", "FP32", "FP16")
_EXACT = dict.fromkeys(_FLOATS, Tolerance(0.0, 0.0))
_NO_LIMIT = dict.fromkeys(_FLOATS, Tolerance(0.0, float("inf")))
_RULE = f"float32 {OTHER_BATCH['FP32'].relative:g} relative + {OTHER_BATCH['FP32'].absolute:g}"
_CAUSES: Mapping[str, str] = {
    "batch": "an answer depends on the rows that share its run: padding that is not masked, or a statistic "
    "of the batch",
    "repeat": "the network is not deterministic: it draws random numbers, or keeps something between runs",
    "device": "the devices disagree by more than the order of sums explains",
    "int8": "quantization changes answers",
    "against": "the versions answer differently",
    "environment": "the libraries of the two environments answer differently",
    "offline": "training and package do not make the same of a row",
}


@dataclass(slots=True)
class Pair:
    """Two sides of a check.

    Attributes:
        kind: of the check.
        left: what is compared with.
        right: what must agree with it.
        tolerances: by datatype.
        rule: the tolerances in words.
        facts: what else differs between the sides, by name: left and right.
        tally: of the requests that at least one side answered.
        unanswered: requests that neither answered.
        problems: why requests were not answered, by how often.
    """

    kind: str
    left: Side
    right: Side
    tolerances: Mapping[str, Tolerance]
    rule: str
    facts: dict[str, tuple[str, str]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    unanswered: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    def count(self, case: Case, left: Answered, right: Answered) -> None:
        """Count a request by the answers of both sides."""
        if problem := left.problem or right.problem:
            self.problems[problem] += 1
        if left.problem and right.problem:
            self.unanswered += 1
        elif left.problem or right.problem:
            self.tally.add_refused(case.name)
        else:
            found = compare_answers(left.columns, right.columns, self.tolerances, measured=True)
            self.tally.add(case.name, found, left.hashes, right.hashes)

    def check(self, threshold: float) -> Check:
        """Whether the two agree."""
        return judged(self.kind, self.tally, threshold)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The checks that were asked for.

    Attributes:
        kinds: of `KINDS`.
        against: the reference of another version.
        environment: another Python, its folder, or a file of requirements.
        offline: a file of what a training script made of rows.
    """

    kinds: tuple[str, ...] = ()
    against: str | None = None
    environment: Path | None = None
    offline: Path | None = None

    @property
    def needs_requests(self) -> bool:
        return bool(self.kinds or self.against or self.environment)


def judged(kind: str, tally: Tally, threshold: float, unit: str = "request") -> Check:
    """The check of a tally, with what usually lies behind its failure."""
    check = replace(judge_agreement(tally, threshold, unit), name=kind)
    if check.verdict is not Verdict.FAIL:
        return check
    stage = tally.diverging_stage
    return replace(check, message=_CAUSES[kind] + (f" (first at the stage {stage!r})" if stage else ""))


def make_pairs(
    context: Context, subject: Subject, model: Model, wanted: Wanted, stack: ExitStack
) -> tuple[list[Pair], list[Check]]:
    """The pairs that can be compared, and a check for each that cannot.

    Args:
        context: the command's context.
        subject: the version.
        model: of it, on the CPU.
        wanted: the checks.
        stack: holds what must be there while they run.

    Raises:
        MlxError: the other version or environment is not there, or cannot be used.
    """
    pairs: list[Pair] = []
    impossible: list[Check] = []
    alone = Alone(model, subject.ref)
    for kind in dict.fromkeys(wanted.kinds):
        pair = _pair(context, subject, model, kind, alone, stack)
        if isinstance(pair, str):
            impossible.append(Check(kind, Verdict.UNDECIDED, "", "the same answers", pair))
        else:
            pairs.append(pair)
    if wanted.against is not None:
        other = stack.enter_context(open_subject(context, wanted.against))
        pairs.append(_against(context, subject, other, alone, "against"))
    if wanted.environment is not None:
        place = elsewhere(wanted.environment, subject.package.root, model.session.threads)
        with context.progress.stage(f"preparing the environment {wanted.environment.name}"):
            side = stack.enter_context(place)
        pairs.append(_environment(alone, side))
    return pairs, impossible


def run_pairs(pairs: Sequence[Pair], cases: Iterator[Case]) -> Iterator[int]:
    """Answer the cases on all sides; yields how many each step has done. Each side answers a case once."""
    while chunk := list(islice(cases, _CHUNK)):
        answered: dict[int, list[Answered]] = {}
        for pair in pairs:
            for side in (pair.left, pair.right):
                if id(side) not in answered:
                    answered[id(side)] = side.answers(chunk)
            for case, left, right in zip(
                chunk, answered[id(pair.left)], answered[id(pair.right)], strict=True
            ):
                pair.count(case, left, right)
        yield len(chunk)


def _pair(
    context: Context, subject: Subject, model: Model, kind: str, alone: Alone, stack: ExitStack
) -> Pair | str:
    """A pair by its kind, or why there is none."""
    if kind == "batch":
        if model.spec.fixed_rows is not None:
            return (
                f"the network takes {model.spec.fixed_rows} rows in every run, so no batch has another size"
            )
        return Pair(kind, RowByRow(model), Together(model), OTHER_BATCH, _RULE)
    if kind == "repeat":
        return Pair(kind, alone, Crowded(model), _EXACT, "bit by bit")
    if kind == "int8":
        ref = _twin(context, subject)
        if ref is None:
            return f"{subject.ref} has no quantized form, and is none"
        return _against(context, subject, stack.enter_context(open_subject(context, ref)), alone, kind)
    return _devices(context, subject, alone)


def _devices(context: Context, subject: Subject, alone: Alone) -> Pair | str:
    other = open_model(context, subject, device="auto")
    if other.session.device == "cpu":
        return "this machine has no device beside the CPU that can run it"
    return Pair("device", alone, Alone(other, f"on {other.session.device}"), OTHER_BATCH, _RULE)


def _twin(context: Context, subject: Subject) -> str | None:
    """The newest version that was quantized from this one, or the one that this was quantized from."""
    version = subject.version
    if version is None:
        return None
    if version.quantized:
        return version.parent or None
    every = context.catalog.versions(version.name, limit=None)
    made = [other for other in every if other.quantized and other.parent == version.ref]
    return max(made, key=lambda other: other.number).ref if made else None


def _against(context: Context, subject: Subject, other: Subject, alone: Alone, kind: str) -> Pair:
    theirs = open_model(context, other, device="cpu")
    side = Alone(theirs, other.ref)
    paths = [each.package.model_path for each in (subject, other)]
    facts = {"digest": (subject.package.digest[:12], other.package.digest[:12])}
    if not any(map(has_integers, paths)):
        return Pair(kind, alone, side, OTHER_BATCH, _RULE, facts)
    if theirs.labels:
        return Pair(kind, alone, side, _NO_LIMIT, "the same labels; numbers are shown only", facts)
    scales = {name: scale for path in paths for name, scale in output_scales(path).items()}
    if scales:
        step = max(scales.values())
        tolerances = dict.fromkeys(_FLOATS, Tolerance(0.0, step * (1 + 1e-6)))
        return Pair(kind, alone, side, tolerances, f"one step of the integers, {step:.3g}", facts)
    rule = f"{_RULE}: the networks name no scale of integers for their outputs"
    return Pair(kind, alone, side, OTHER_BATCH, rule, facts)


def _environment(alone: Alone, side: Elsewhere) -> Pair:
    here = versions()
    facts = {
        name: (here.get(name, "none"), side.versions.get(name, "none"))
        for name in dict.fromkeys((*here, *side.versions))
        if here.get(name) != side.versions.get(name)
    }
    return Pair("environment", alone, side, OTHER_BATCH, _RULE, facts)
