"""Whether a version may hold an alias: one judgement for `mlx gate` and `mlx promote`."""

import difflib
import shlex
from dataclasses import dataclass, replace
from typing import Any

from mlx_platform.core.errors import IntegrityError, NotFoundError, UsageError
from mlx_platform.core.settings import PromotionSettings, QuantizationSettings
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.registry.journal import Journal
from mlx_platform.registry.policy import (
    Candidate,
    Requirement,
    Standard,
    answers,
    lifted,
    requirements,
    self_checked,
)
from mlx_platform.registry.ref import check_alias
from mlx_platform.registry.tolerance import Tolerance
from mlx_platform.registry.version import EvidenceSummary, Version, evidence_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.baseline import own_baseline
from mlx_platform.workflows.selfcheck import self_check
from mlx_platform.workflows.steps import rows_for
from mlx_platform.workflows.subject import adoption


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an alias asks of a version, with the answers; `before` holds the alias now.

    `reason` is why gates were let pass by hand, or the version is moved.
    """

    version: Version
    alias: str
    before: int | None
    policy: PromotionSettings
    evidence: dict[str, EvidenceSummary]
    requirements: tuple[Requirement, ...]
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        return verdict_of(requirement.check for requirement in self.requirements)

    @property
    def open(self) -> tuple[Requirement, ...]:
        """What stands in the way."""
        return tuple(requirement for requirement in self.requirements if requirement.open)

    @property
    def overridden(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.requirements if one.check.skipped)

    @property
    def checks(self) -> tuple[Check, ...]:
        """The requirements, and behind them the gates inside of their evidence."""
        found = [requirement.check for requirement in self.requirements]
        for requirement in self.requirements:
            inner = answers(requirement.evidence) if requirement.evidence else ()
            found += [
                replace(check, skipped=check.skipped or requirement.check.skipped)
                if check.verdict is not Verdict.PASS
                else check
                for check in inner
            ]
        return tuple(found)

    @property
    def commands(self) -> tuple[str, ...]:
        """What brings about that the open requirements pass."""
        return tuple(dict.fromkeys(one.command for one in self.open if one.command))

    @property
    def by_hand(self) -> str:
        """The command that lets the open requirements pass by hand; empty where that is not possible."""
        if not self.open or not all(requirement.lift for requirement in self.open):
            return ""
        names = dict.fromkeys((*self.overridden, *(requirement.name for requirement in self.open)))
        flags = " ".join(f"--override {name}" for name in names)
        reason = shlex.quote(printable(self.reason, 500)) if self.reason.strip() else "WHY"
        return f"mlx promote {self.version.ref} --to {self.alias} {flags} --reason {reason}"

    @property
    def reasons(self) -> str:
        """What stands in the way, in a few words."""
        return ", ".join(f"{one.name} ({one.check.measured})" for one in self.open)

    def document(self) -> dict[str, Any]:
        """The judgement, JSON-ready, as `mlx gate` and a refused promotion show it."""
        return {
            "name": self.version.name,
            "version": self.version.number,
            "digest": self.version.digest,
            "alias": self.alias,
            "before": self.before,
            "allowed": self.verdict is Verdict.PASS,
            "policy": {
                "needs": list(self.policy.needs),
                "min_age": self.policy.min_age,
                "max_evidence_age": self.policy.max_evidence_age,
                "allow_override": self.policy.allow_override,
            },
            "gates": [requirement.document() for requirement in self.requirements],
            "commands": list(self.commands),
            "by_hand": self.by_hand,
        }


def check_target(alias: str, known: set[str]) -> None:
    """Refuse what is no alias, or looks like a known one that was misspelt.

    Raises:
        UsageError: names the alias that may be meant.
    """
    check_alias(alias)
    # A misspelt alias would be a new one, and a new one has no gates.
    close = difflib.get_close_matches(alias, known, n=1, cutoff=0.75)
    if alias not in known and close:
        raise UsageError(f"There is no alias {alias!r}.", hint=did_you_mean(alias, known))


def judge_version(
    context: Context,
    version: Version,
    alias: str,
    before: int | None,
    journal: Journal | None = None,
    *,
    override: tuple[str, ...] = (),
    reason: str = "",
) -> Judgement:
    """Hold a version against the policy of an alias, and run its self-check.

    Args:
        context: the command's context.
        version: the candidate.
        alias: what it shall hold.
        before: who holds the alias now.
        journal: of the model; read where the caller has not.
        override: requirements to let pass by hand, or `all`.
        reason: why.

    Raises:
        IntegrityError: the package's bytes are missing or changed.
        UsageError: an override that is not possible, or a gate file that cannot be read.
    """
    policy = context.settings.promotion.get(alias, PromotionSettings())
    evidence = evidence_of(version)
    journal = journal or context.catalog.journal(version.name)
    rolled_back = journal.rolled_back(alias).get(version.number)
    evaluated = "evaluation" in policy.needs
    asked = requirements(
        policy,
        Candidate(version, evidence, rolled_back, rows_for(context, version, before) if evaluated else ""),
        standard=_standard(context, version, evidence.get("evaluation"), evaluated=evaluated),
        now=context.clock(),
    )
    lifted(asked, policy, alias=alias, override=override, reason=reason)  # a misspelt one is said at once
    if not version.sealed:
        asked = tuple(_possible(context, requirement, version) for requirement in asked)
    else:
        checked = self_check(context, version)
        asked = (*asked, self_checked(policy, checked.cases, checked.problems))
    asked = lifted(asked, policy, alias=alias, override=override, reason=reason)
    return Judgement(version, alias, before, policy, evidence, asked, reason)


def _possible(context: Context, requirement: Requirement, version: Version) -> Requirement:
    """The same without `mlx adopt`, where that cannot work."""
    if not requirement.command.startswith("mlx adopt "):
        return requirement
    words, command = adoption(context, version)
    if command:
        return requirement
    check = replace(requirement.check, message=f"{requirement.check.message} {words}")
    return replace(requirement, check=check, command="")


def _standard(
    context: Context, version: Version, evaluation: EvidenceSummary | None, *, evaluated: bool
) -> Standard:
    """By what evidence must have been judged today."""
    standard = Standard(
        min_agreement=context.settings.consistency.min_agreement,
        tolerances=_tolerances(context.settings.quantization) if version.quantized else {},
    )
    if not evaluated:
        return standard
    asked, ref, baseline = _project_gates(context), "", ""
    if evaluation and evaluation.judged.get("compared") is True:
        ref = own_baseline(context, version.name, str(evaluation.judged.get("baseline", ""))) or ""
        baseline = _digest_of(context, ref)
    return replace(standard, gates=asked[0], gates_name=asked[1], baseline=baseline, baseline_ref=ref)


def _tolerances(settings: QuantizationSettings) -> dict[str, Tolerance]:
    """What a quantization may lose, as the settings say or by default."""
    from mlx_platform.workflows.quantization.judgement import accuracy_gate, tolerance_of

    gates = [accuracy_gate(task, None, settings) for task in ("classification", "regression")]
    return {gate.limit: tolerance for gate in gates if (tolerance := tolerance_of(gate))}


def _project_gates(context: Context) -> tuple[str, str]:
    """Digest and name of the project's own gates; both empty where there are none."""
    own = context.settings.evaluation
    if not (own.gates or own.gate or own.defaults or own.baseline or own.guard):
        return "", ""
    from mlx_platform.workflows.evaluation.asking import project_gates

    asked = project_gates(context.settings)
    return asked.digest, printable(own.gates or asked.source, 200)


def _digest_of(context: Context, ref: str) -> str:
    """The digest of a registered baseline; empty for none, a file, or one that is gone."""
    try:
        return context.catalog.resolve(ref).digest if ref else ""
    except (NotFoundError, IntegrityError, UsageError):
        return ""
