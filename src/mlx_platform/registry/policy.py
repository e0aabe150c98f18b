"""What an alias asks of a version before it may hold it."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mlx_platform.core.clock import both_zones, parse_duration, span_text
from mlx_platform.core.errors import UsageError
from mlx_platform.core.settings import PromotionSettings
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.verdict import Check, Verdict
from mlx_platform.registry.journal import Event
from mlx_platform.registry.tolerance import Tolerance, too_wide
from mlx_platform.registry.version import QUANTIZED, UNKNOWN_TIME, EvidenceSummary, Version

QUARANTINE = "quarantine"
SELF_CHECK = "self-check"
ALL = "all"
_MIN_AGE = "min_age"
_ARCHIVED = "archived"
_SEALED = "sealed"
_EVALUATION = "evaluation"
_QUANTIZATION = "quantization"
_METHODS = {"dynamic-int8": " --method dynamic", "fp16": " --method fp16", "int4": " --method int4"}
_BY_NAME = (QUARANTINE, SELF_CHECK)
"""What `all` does not lift: these speak against the version itself, not of something that is missing."""


@dataclass(frozen=True, slots=True)
class Standard:
    """By what evidence must have been judged to count today.

    Attributes:
        gates: digest of the gate file that the settings name; empty when they name none.
        gates_name: that file, for people.
        baseline: digest of the version that an evaluation would be compared with now; empty for none.
        baseline_ref: that version, for people.
        min_agreement: the share of requests that a consistency check must have asked for.
        tolerances: what a quantization may lose by its kind of limit, `max_drop` or `max_rise`; empty where
            the settings say nothing.
    """

    gates: str = ""
    gates_name: str = ""
    baseline: str = ""
    baseline_ref: str = ""
    min_agreement: float = 0.0
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing that the alias asks, with its answer.

    Attributes:
        check: the answer; its name is what `--override` takes.
        command: what brings about that it passes; empty where no command does.
        lift: the words after `--override` that let it pass by hand; none when nothing does.
        evidence: what it was answered by.
    """

    check: Check
    command: str = ""
    lift: tuple[str, ...] = ()
    evidence: EvidenceSummary | None = None

    @property
    def name(self) -> str:
        return self.check.name

    @property
    def open(self) -> bool:
        """Whether it stands in the way."""
        return self.check.verdict is not Verdict.PASS and not self.check.skipped

    def document(self) -> dict[str, Any]:
        """The answer, JSON-ready."""
        check, evidence = self.check, self.evidence
        return {
            "name": check.name,
            "verdict": str(check.verdict),
            "measured": check.measured,
            "threshold": check.threshold,
            "message": check.message,
            "skipped": check.skipped,
            "command": self.command,
            "override": list(self.lift),
            "evidence": evidence.document() if evidence else None,
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version that shall hold an alias, and what is known about it.

    Attributes:
        version: the version.
        evidence: by kind, about its digest.
        rolled_back: the rollback that took the alias from it, unless it was promoted again since.
        data: rows on which another version was evaluated, for the command that evaluates this one.
    """

    version: Version
    evidence: Mapping[str, EvidenceSummary]
    rolled_back: Event | None = None
    data: str = ""


def requirements(
    policy: PromotionSettings, candidate: Candidate, *, standard: Standard, now: datetime
) -> tuple[Requirement, ...]:
    """Hold a candidate against the policy of an alias.

    A quantized version needs the evidence of its quantization wherever others need any. What cannot be told
    (no evidence, evidence that was judged by other gates or against another baseline than today's, a version
    that is too young) is undecided and never a pass.

    Args:
        policy: of the alias.
        candidate: the version with its evidence.
        standard: by what evidence must have been judged.
        now: the time.

    Returns:
        A requirement per need, then age and quarantine; one more for a version that is archived, or that
        plain MLflow registered.
    """
    version = candidate.version
    needs: list[str] = list(dict.fromkeys(policy.needs))
    if version.quantized and needs and _QUANTIZATION not in needs:
        needs.append(_QUANTIZATION)
    found = [_evidence(need, candidate, policy, standard, now) for need in needs]
    if policy.min_age:
        found.append(Requirement(_age(version, parse_duration(policy.min_age), now)))
    found.append(Requirement(_quarantine(candidate)))
    if version.archived:
        message = f"{version.ref} is archived, and no archived version moves."
        found.append(Requirement(_check(_ARCHIVED, Verdict.FAIL, "archived", "not archived", message)))
    if not version.sealed:
        message = f"{version.ref} is not sealed: its bytes may change under the alias."
        check = _check(_SEALED, Verdict.FAIL, "not sealed", "a sealed package", message)
        found.append(Requirement(check, f"mlx adopt {version.ref}"))
    return tuple(_with_lift(requirement, policy) for requirement in found)


def self_checked(policy: PromotionSettings, cases: int, problems: tuple[str, ...]) -> Requirement:
    """The requirement that the package loads and answers its golden cases.

    Args:
        policy: of the alias.
        cases: how many golden cases ran.
        problems: what went wrong, one sentence each.
    """
    verdict = Verdict.FAIL if problems else Verdict.PASS
    agreeing = f"loads, {cases} golden {'case agrees' if cases == 1 else 'cases agree'}"
    measured = "failed" if problems else agreeing if cases else "loads; it has no golden cases"
    message = " ".join(printable(problem, 300) for problem in problems[:3])
    check = _check(SELF_CHECK, verdict, measured, "loads and answers its golden cases", message)
    return _with_lift(Requirement(check), policy)


def lifted(
    asked: tuple[Requirement, ...],
    policy: PromotionSettings,
    *,
    alias: str,
    override: tuple[str, ...],
    reason: str,
) -> tuple[Requirement, ...]:
    """Let requirements pass by hand.

    Args:
        asked: the requirements.
        policy: of the alias.
        alias: for the message.
        override: names of requirements, or `all`, which lifts no quarantine and no self-check.
        reason: why; kept with each.

    Raises:
        UsageError: there is no such requirement, or the policy forbids it.
    """
    known = {*(requirement.name for requirement in asked), *policy.needs, *_BY_NAME, ALL}
    for name in override:
        if name not in known:
            raise UsageError(f"{alias} has no gate {printable(name, 80)!r}.", hint=did_you_mean(name, known))
    if override and not policy.allow_override:
        raise UsageError(f"The gates of {alias} cannot be let pass by hand: `allow_override` is false.")
    return tuple(
        replace(requirement, check=replace(requirement.check, skipped=f"let pass by hand: {reason}"))
        if requirement.open and set(requirement.lift) & set(override)
        else requirement
        for requirement in asked
    )


def producing_command(kind: str, version: Version, *, data: str = "", gates: bool = True) -> str:
    """The command that produces evidence of a kind for this version.

    Args:
        kind: of evidence.
        version: what it shall be about.
        data: the labelled rows, where they are known.
        gates: whether a gate file must be named, because the settings name none.
    """
    rows = shlex.quote(printable(data, 300)) if data else "TEST.parquet"
    method = _METHODS.get(version.tags.get(QUANTIZED, ""), "")
    commands = {
        _EVALUATION: f"mlx eval {version.ref} --data {rows}{' --gates gates.toml' if gates else ''}",
        _QUANTIZATION: f"mlx quantize {printable(version.parent) or version.ref} "
        f"--calibration ROWS.parquet --data {rows}{method}",
        "consistency": f"mlx consistency {version.ref} --traffic DIR",
        "online": f"mlx eval {version.ref} --traffic DIR",
        "shadow": f"mlx rollout start {version.ref}",
        "rollout": f"mlx rollout start {version.ref}",
    }
    return commands.get(kind, "")


def _noun(kind: str) -> str:
    """What evidence of a kind is called in a sentence."""
    return "online evaluation" if kind == "online" else kind


def data_of(evidence: EvidenceSummary | None) -> str:
    """The rows on which something was found out, as somebody wrote them; empty where nobody knows."""
    data = evidence.judged.get("data") if evidence else ""
    return data if isinstance(data, str) else ""


def answers(evidence: EvidenceSummary) -> Iterator[Check]:
    """The gates that a piece of evidence answered, each with its threshold beside what was measured."""
    for gate in evidence.gates:
        metric, _, bound = printable(str(gate.get("name", "")), 120).partition(" ")
        written = str(gate.get("verdict", ""))
        yield Check(
            name=f"{printable(evidence.kind, 40)}: {metric}",
            verdict=Verdict(written) if written in set(Verdict) else Verdict.ERROR,
            measured=printable(str(gate.get("shown", "")), 120),
            threshold=bound,
            group=printable(evidence.kind, 40),
            skipped=printable(str(gate.get("skipped", "")), 200),
        )


def _evidence(
    need: str, candidate: Candidate, policy: PromotionSettings, standard: Standard, now: datetime
) -> Requirement:
    version, found = candidate.version, candidate.evidence.get(need)
    threshold = f"{need} passed for this digest"
    if policy.max_evidence_age:
        threshold += f", at most {policy.max_evidence_age} ago"
    command = producing_command(
        need, version, data=data_of(found) or candidate.data, gates=not standard.gates
    )
    if found is None:
        message = f"There is no {_noun(need)} of {version.ref} with this digest."
        if not version.sealed:
            message, command = f"No evidence can be about {version.ref}, which is not sealed.", ""
        return Requirement(_check(need, Verdict.UNDECIDED, "no evidence", threshold, message), command)
    verdict = Verdict(found.verdict) if found.verdict in set(Verdict) else Verdict.ERROR
    measured, message = printable(found.verdict, 40) or "no verdict", ""
    if verdict is not Verdict.PASS:
        message = f"The {_noun(need)} of {version.ref} from {printable(found.created, 40)} did not pass."
    elif outdated := _outdated(need, found, version, policy, standard, now):
        verdict, (measured, message) = Verdict.UNDECIDED, outdated
    else:
        measured += _ago(found, now)
    check = _check(need, verdict, measured, threshold, message)
    return Requirement(check, "" if verdict is Verdict.PASS else command, evidence=found)


def _outdated(
    need: str,
    found: EvidenceSummary,
    version: Version,
    policy: PromotionSettings,
    standard: Standard,
    now: datetime,
) -> tuple[str, str] | None:
    """Why evidence that passed does not count today: in two words, and in a sentence."""
    if policy.max_evidence_age and not _recent(found, parse_duration(policy.max_evidence_age), now):
        aged = _ago(found, now).removeprefix(", ") or "without a date"
        noun, longest = _noun(need), policy.max_evidence_age
        return "too old", f"The {noun} of {version.ref} is {aged}; it counts for {longest}."
    judged = found.judged
    if need == "consistency" and _number(judged.get("threshold"), 1.0) < standard.min_agreement:
        return "other gates", (
            f"The consistency of {version.ref} was judged by {judged.get('threshold'):g}, "
            f"and min_agreement is {standard.min_agreement:g} now."
        )
    if need == "online" and judged.get("by_settings") is not True:
        return "other limit", (
            f"The online evaluation of {version.ref} was asked for other metrics or another --max-difference "
            "than that of the settings."
        )
    if need == _QUANTIZATION and (wide := too_wide(judged, standard.tolerances)):
        return "other limit", f"The quantization of {version.ref} was judged {wide}."
    return _judged_otherwise(judged, version, standard) if need == _EVALUATION else None


def _judged_otherwise(
    judged: Mapping[str, Any], version: Version, standard: Standard
) -> tuple[str, str] | None:
    """Why an evaluation answers other questions than those of today."""
    if standard.gates and judged.get("gate_file") != standard.gates:
        was = "judged by other gates" if judged.get("gate_file") else "not judged by the gates"
        than = "than" if judged.get("gate_file") else "of"
        return (
            "other gates",
            f"The evaluation of {version.ref} was {was} {than} {standard.gates_name} as it is now.",
        )
    compared = judged.get("compared") is True and standard.baseline not in {"", version.digest}
    if compared and judged.get("against") != standard.baseline:
        against = printable(str(judged.get("against_ref", "")), 100)
        was = f"compared with {against}" if against else "compared with nothing"
        return (
            "other baseline",
            f"The evaluation of {version.ref} was {was}; it is {standard.baseline_ref} now.",
        )
    return None


def _age(version: Version, least: timedelta, now: datetime) -> Check:
    age = now - version.created
    threshold = f">= {span_text(least)} since it was registered"
    if version.created == UNKNOWN_TIME:
        message = f"The registry does not say when {version.ref} was registered."
        return _check(_MIN_AGE, Verdict.UNDECIDED, "unknown", threshold, message)
    if age >= least:
        return _check(_MIN_AGE, Verdict.PASS, span_text(age), threshold, "")
    message = f"{version.ref} is old enough in {span_text(least - age)}."
    return _check(_MIN_AGE, Verdict.UNDECIDED, span_text(age), threshold, message)


def _quarantine(candidate: Candidate) -> Check:
    version, event = candidate.version, candidate.rolled_back
    threshold = "neither quarantined nor rolled back"
    said = []
    if version.quarantined:
        said.append(f"{version.ref} is quarantined: {printable(version.quarantined, 200).rstrip('.')}.")
    if event:
        said.append(f"{version.ref} was {rolled_back_text(event)}.")
    if not said:
        return _check(QUARANTINE, Verdict.PASS, "no", threshold, "")
    measured = "quarantined" if version.quarantined else "rolled back"
    return _check(QUARANTINE, Verdict.FAIL, measured, threshold, " ".join(said))


def rolled_back_text(event: Event) -> str:
    """`rolled back from production on …, by …: reason`."""
    text = f"rolled back from {event.alias} on {both_zones(event.time)} by {printable(event.actor, 80)}"
    return f"{text}: {printable(event.reason, 200).rstrip('.')}" if event.reason else text


def _with_lift(requirement: Requirement, policy: PromotionSettings) -> Requirement:
    if not policy.allow_override or requirement.name in {_ARCHIVED, _SEALED}:
        return requirement
    names = (requirement.name,) if requirement.name in _BY_NAME else (requirement.name, ALL)
    return replace(requirement, lift=names)


def _check(name: str, verdict: Verdict, measured: str, threshold: str, message: str) -> Check:
    return Check(name, verdict, measured, threshold, message, "promotion")


def _created(found: EvidenceSummary) -> datetime | None:
    try:
        moment = datetime.fromisoformat(found.created)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _recent(found: EvidenceSummary, most: timedelta, now: datetime) -> bool:
    created = _created(found)
    return created is not None and now - created <= most


def _ago(found: EvidenceSummary, now: datetime) -> str:
    created = _created(found)
    return f", {span_text(now - created)} ago" if created else ""


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
