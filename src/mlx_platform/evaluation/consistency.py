"""Online against offline answers: how many requests agree, how sure that is, and where they part."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlx_platform.core.statistics import clopper_pearson_lower
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.evaluation.agreement import AnswerAgreement, ArrayAgreement

MIN_AGREEMENT = 0.99
CONFIDENCE = 0.95  # one-sided
_EXAMPLES = 20
_MOST_REQUESTS = 10**8

CAUSES: Mapping[str, str] = {
    "raw": "the inputs in the log are not those that were served",
    "tensor": "pre-processing differs",
    "logits": "the model or its runtime differs",
    "output": "post-processing differs",
}
"""What it means when a stage is the first whose hash differs, in the order of the stages."""


@dataclass(slots=True)
class StageCount:
    """How often a stage was compared, was the same bit by bit, and was the first to differ in a mismatch."""

    compared: int = 0
    equal: int = 0
    first: int = 0


@dataclass(slots=True)
class StageAlone:
    """Of how many requests a stage was given what the server had given it, and did the same with it."""

    compared: int = 0
    agreeing: int = 0


@dataclass(slots=True)
class Tally:
    """What was found over all requests; add one after the other, in any order."""

    requests: int = 0
    agreeing: int = 0
    labels: int = 0
    labels_agreeing: int = 0
    ties: int = 0
    outputs: dict[str, ArrayAgreement] = field(default_factory=dict)
    stages: dict[str, StageCount] = field(default_factory=dict)
    alone: dict[str, StageAlone] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    other_runtimes: Counter[str] = field(default_factory=Counter)
    examples: list[tuple[str, str, str]] = field(default_factory=list)

    def add(
        self,
        request_id: str,
        answer: AnswerAgreement,
        logged: Mapping[str, str],
        replayed: Mapping[str, str],
        other_runtime: str = "",
    ) -> None:
        """Count a replayed request.

        Args:
            request_id: names it among the examples.
            answer: how its answers compare.
            logged: hashes by stage, as served.
            replayed: hashes by stage, computed anew.
            other_runtime: in what the runtime that served it differs from this one, in words.
        """
        self.requests += 1
        self.labels += answer.labels
        self.labels_agreeing += answer.labels_agreeing
        self.ties += answer.ties
        for name, output in answer.outputs.items():
            total = self.outputs.get(name)
            if total is None:
                total = self.outputs[name] = ArrayAgreement()
            total.add(output)
        stage = first_difference(logged, replayed)
        self._count_stages(logged, replayed)
        if answer.agrees:
            self.agreeing += 1
            return
        if other_runtime:
            self.other_runtimes[other_runtime] += 1
        if stage:
            self.stages[stage].first += 1
        reasons = {reason for output in answer.outputs.values() for reason in output.reasons}
        self._remember(request_id, stage, ", ".join(sorted(reasons)))

    def add_alone(self, agreeing: Mapping[str, bool]) -> None:
        """Count a request whose stages were tried one by one, each with what the server had there."""
        for stage, agrees in agreeing.items():
            count = self.alone.setdefault(stage, StageAlone())
            count.compared += 1
            count.agreeing += agrees

    def add_refused(self, request_id: str, reason: str = "unparsable") -> None:
        """Count a request that was served and cannot be replayed: a disagreement."""
        self.requests += 1
        self.refused[reason] += 1
        self._remember(request_id, "", reason)

    def _remember(self, request_id: str, stage: str, reasons: str) -> None:
        self.mismatches += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append((request_id, stage, reasons))

    def _count_stages(self, logged: Mapping[str, str], replayed: Mapping[str, str]) -> None:
        for stage in CAUSES:
            if stage in logged and stage in replayed:
                count = self.stages.get(stage)
                if count is None:
                    count = self.stages[stage] = StageCount()
                count.compared += 1
                count.equal += logged[stage] == replayed[stage]

    @property
    def agreement(self) -> float | None:
        """The share of requests all of whose elements agree; None without requests."""
        return self.agreeing / self.requests if self.requests else None

    @property
    def element_agreement(self) -> float | None:
        elements = sum(output.elements for output in self.outputs.values())
        disagreeing = sum(output.disagreeing for output in self.outputs.values())
        return 1 - disagreeing / elements if elements else None

    @property
    def label_agreement(self) -> float | None:
        return self.labels_agreeing / self.labels if self.labels else None

    @property
    def lower(self) -> float:
        """The exact one-sided 95 % bound of the request agreement."""
        return clopper_pearson_lower(self.agreeing, self.requests, CONFIDENCE)

    @property
    def reasons(self) -> dict[str, int]:
        """Disagreeing elements by reason, and requests that could not be replayed."""
        total: Counter[str] = Counter(self.refused)
        for output in self.outputs.values():
            total.update(output.reasons)
        return dict(total.most_common())

    @property
    def diverging_stage(self) -> str:
        """The stage at which most mismatches begin; empty when the hashes do not tell."""
        counted = {stage: self.stages[stage].first for stage in CAUSES if stage in self.stages}
        stage = max(counted, key=lambda name: counted[name], default="")
        return stage if stage and counted[stage] else ""

    @property
    def stage_alone(self) -> str:
        """The stage that most often does otherwise with what the server gave it; empty when none does."""
        bad = {
            stage: 1 - self.alone[stage].agreeing / self.alone[stage].compared
            for stage in CAUSES
            if stage in self.alone
        }
        stage = max(bad, key=lambda name: bad[name], default="")
        return stage if stage and bad[stage] else ""

    @property
    def other_runtime(self) -> str:
        """In what the runtime of at least half of the mismatches differs from this one, or empty."""
        words, count = next(iter(self.other_runtimes.most_common(1)), ("", 0))
        return words if 2 * count >= self.mismatches else ""

    @property
    def reproducible(self) -> bool:
        """Whether the model's outputs are usually the same bit by bit, so that their hash tells something."""
        logits = self.stages.get("logits")
        return logits is None or logits.compared == 0 or logits.equal >= 0.5 * logits.compared

    def document(self) -> dict[str, Any]:
        """The numbers, JSON-ready."""
        return {
            "agreement": {
                "request": self.agreement,
                "element": self.element_agreement,
                "label": self.label_agreement,
                "lower": self.lower if self.requests else None,
                "ties": self.ties,
            },
            "stages": {
                stage: {
                    "compared": count.compared,
                    "equal": count.equal,
                    "first_difference": count.first,
                }
                for stage, count in self.stages.items()
            },
            "alone": {
                stage: {"compared": count.compared, "agreeing": count.agreeing}
                for stage, count in self.alone.items()
            },
            "outputs": {name: output.document() for name, output in self.outputs.items()},
            "reasons": self.reasons,
            "diverging_stage": self.diverging_stage or None,
            "other_runtime": self.other_runtime or None,
            "examples": [request_id for request_id, _stage, _reasons in self.examples],
        }


def first_difference(logged: Mapping[str, str], replayed: Mapping[str, str]) -> str:
    """The first stage whose hashes differ; empty when none does that both sides have."""
    for stage in CAUSES:
        if stage in logged and stage in replayed and logged[stage] != replayed[stage]:
            return stage
    return ""


def judge_agreement(tally: Tally, threshold: float = MIN_AGREEMENT, unit: str = "request") -> Check:
    """Whether the requests agree.

    Below the threshold it fails. Above, it passes only when the exact bound shows it: a handful of requests
    that agree says little about the rest, and no request says nothing.
    """
    shown = f">= {threshold:.4g}"
    agreement = tally.agreement
    if agreement is None:
        return Check("agreement", Verdict.UNDECIDED, "", shown, f"no {unit} could be compared")
    measured = f"{agreement:.4%} of {plural(tally.requests, unit)} (at least {tally.lower:.4%})"
    if agreement < threshold:
        return Check("agreement", Verdict.FAIL, measured, shown, _cause(tally))
    if tally.lower >= threshold:
        return Check("agreement", Verdict.PASS, measured, shown)
    needed = requests_needed(tally.mismatches, threshold)
    few = "is" if tally.requests == 1 else "are"
    message = f"{plural(tally.requests, unit)} {few} too few to show it"
    if needed:
        message += f"; {needed:,} with {tally.mismatches:,} mismatches would"
    return Check("agreement", Verdict.UNDECIDED, measured, shown, message)


def _cause(tally: Tally) -> str:
    stage, alone = tally.diverging_stage, tally.stage_alone
    served = f"; served by {tally.other_runtime}" if tally.other_runtime else ""
    if alone:
        # Hashes only tell of bits, and floats may differ in these for reasons that are none.
        count = tally.alone[alone]
        shown = f"{count.compared - count.agreeing:,} of {plural(count.compared, 'request')}"
        return f"{CAUSES[alone]} (the stage {alone!r} does otherwise with the same in {shown}){served}"
    if not stage:
        return f"the stage hashes do not tell where{served}"
    if stage == "logits" and not tally.reproducible:
        what = "the model, its runtime or post-processing differs (outputs are not reproducible bit by bit)"
        return f"{what}{served}"
    return f"{CAUSES[stage]} (first difference at the stage {stage!r}){served}"


def runtime_difference(served: str, here: str) -> str:
    """In what two runtimes differ, each as `inference.model.runtime_name` writes it.

    Returns:
        such as `onnxruntime/1.31.0 (here 1.32.0), cuda (here cpu)`; empty when in nothing, or when the log
        does not say.
    """
    if not served or served == here:
        return ""
    then, now = _parts(served), _parts(here)
    return ", ".join(
        f"{f'{name}/' if name else ''}{then.get(name, 'none')} (here {now.get(name, 'none')})"
        for name in dict.fromkeys((*then, *now))
        if then.get(name) != now.get(name)
    )


def _parts(runtime: str) -> dict[str, str]:
    """Versions by name; the device has none."""
    found = {}
    for part in runtime.split():
        name, _, version = part.rpartition("/")
        found[name] = version
    return found


def requests_needed(mismatches: int, threshold: float = MIN_AGREEMENT) -> int:
    """The fewest requests that show the threshold with so many mismatches; 0 when no number does."""
    low, high = mismatches, max(1, mismatches)
    while clopper_pearson_lower(high - mismatches, high, CONFIDENCE) < threshold:
        low, high = high, 2 * high
        if high > _MOST_REQUESTS:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson_lower(middle - mismatches, middle, CONFIDENCE) < threshold:
            low = middle
        else:
            high = middle
    return high
