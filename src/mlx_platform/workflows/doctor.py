"""`mlx doctor`: what is wrong with a registry or with one package, and putting it right."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlx_platform.core.errors import GateFailedError, IntegrityError, NotFoundError, UsageError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.core.text import plural, printable
from mlx_platform.core.verdict import Check, Verdict, verdict_of
from mlx_platform.registry.cache import FALLBACK
from mlx_platform.registry.examination import Finding, examine_model
from mlx_platform.registry.examined import Examined
from mlx_platform.registry.journal import Event, check_reason
from mlx_platform.registry.leftovers import remove_folder, stale_folders
from mlx_platform.registry.policy import QUARANTINE, SELF_CHECK
from mlx_platform.registry.ref import AliasRef, check_name, parse_ref
from mlx_platform.registry.remedies import bytes_remedy
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import holder_text
from mlx_platform.workflows.events import deliver_pending
from mlx_platform.workflows.judgement import Judgement, judge_version
from mlx_platform.workflows.subject import open_model, open_subject

BROKEN = IntegrityError.exit_code


@dataclass(frozen=True, slots=True)
class _Round:
    """One look at everything that was asked about."""

    findings: tuple[Finding, ...]
    models: tuple[Examined, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.sound)

    @property
    def repairable(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.repair)


def doctor_registry(
    context: Context,
    name: str | None = None,
    *,
    deep: bool = False,
    repair: bool = False,
    adopt: tuple[str, ...] = (),
    reason: str = "",
) -> Result:
    """Examine the registry, or one model of it.

    Nothing is written without `repair` or `adopt`, and both change nothing when they are repeated.

    Args:
        context: the command's context.
        name: only this model.
        deep: read every byte of every package.
        repair: make MLflow's aliases follow the journals, write anchors and labels that lag, and remove what
            interrupted commands left behind.
        adopt: `NAME@ALIAS`, whose journal shall take over what MLflow says.
        reason: why; recorded with what is adopted, and needed where the alias asks for evidence that is not
            there.

    Returns:
        A finding per line; exit code 10 when something is broken and was not repaired.

    Raises:
        NotFoundError: no such model, or nobody to adopt.
        ConflictError: somebody moved an alias meanwhile.
        GateFailedError: what MLflow says may not be adopted.
        UnavailableError: the registry or the store cannot be reached.
    """
    check_reason(reason)
    if name is not None:
        check_name(name)
    adopted = [event for ref in _targets(name, adopt) if (event := _adopt(context, *ref, reason=reason))]
    found = _examine(context, name, deep=deep)
    repaired: tuple[str, ...] = ()
    if repair and found.repairable:
        repaired = _repair(context, found)
        found = _examine(context, name, deep=deep)
    result = _result(context, name, found, adopted, repaired, deep=deep)
    models = sorted({event.model for event in adopted})
    untold = [text for model in models for text in deliver_pending(context, model)]
    return replace(result, warnings=(*result.warnings, *untold))


def doctor_package(context: Context, ref: str) -> Result:
    """Examine one package: every digest, whether it loads, and its golden cases.

    Args:
        context: the command's context.
        ref: a registered version, or the path of a package or a model.

    Raises:
        IntegrityError: bytes are missing or changed.
        NotFoundError: no such version or file.
    """
    with open_subject(context, ref) as subject:
        package = subject.package
        with context.progress.stage(f"loading {printable(subject.ref, 200)}"):
            model = open_model(context, subject, device="cpu")
        cases, problems = len(package.golden()), model.self_check()
        document, label = subject.document(), printable(subject.ref, 200)
    files = plural(len(package.manifest.files), "file")
    checks = [
        _check("digests", Verdict.PASS, f"{files}, {package.size:,} bytes", "as in the manifest"),
        _check("loading", Verdict.PASS, f"on {model.session.device}", "loads"),
        _check(
            "golden cases",
            Verdict.FAIL if problems else Verdict.PASS if cases else Verdict.UNDECIDED,
            f"{len(problems)} of {plural(cases, 'case')} differ" if problems else plural(cases, "case"),
            "all as expected",
            problems[0] if problems else "" if cases else "The package brings no golden cases.",
        ),
    ]
    said = (
        f"{label} differs from its golden cases"
        if problems
        else f"{label} is sound"
        if cases
        else f"{label} loads, and nothing says what it should answer"
    )
    return Result(
        command="doctor package",
        data=document | {"files": len(package.manifest.files), "cases": cases, "problems": list(problems)},
        report=Report(
            title=f"doctor {label}",
            summary=f"{said}: {files}, {plural(cases, 'golden case')}.",
            facts=(Fact("digest", package.digest),),
            checks=tuple(checks),
        ),
        verdict=verdict_of(checks),
    )


def _check(name: str, verdict: Verdict, measured: str, threshold: str, message: str = "") -> Check:
    return Check(name, verdict, measured, threshold, message, group="package")


def _targets(name: str | None, refs: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for text in refs:
        ref = parse_ref(text)
        if not isinstance(ref, AliasRef) or ref.back:
            raise UsageError(
                f"{printable(text, 200)!r} is no alias to adopt.", hint="Write --adopt NAME@ALIAS."
            )
        if name is not None and ref.name != name:
            raise UsageError(f"{printable(text, 200)!r} is no alias of {name}.")
        found.append((ref.name, ref.alias))
    return found


def _adopt(context: Context, name: str, alias: str, *, reason: str) -> Event | None:
    doctor = context.catalog.doctor
    difference = doctor.difference(name, alias)
    if difference is None:
        model = doctor.examine(name)  # a model that is not there is said first
        if alias not in {*model.aliases, *model.journal.aliases()}:
            raise NotFoundError(f"No version of {name} holds the alias {alias!r}, so nothing can be adopted.")
        return None
    evidence: dict[str, Any] = {}
    if difference.mlflow is not None:
        version = context.catalog.resolve(f"{name}/{difference.mlflow}")
        judgement = judge_version(context, version, alias, before=difference.journal)
        _refuse(judgement, reason)
        evidence = {
            kind: {"id": summary.id, "verdict": summary.verdict}
            for kind, summary in judgement.evidence.items()
        }
        if judgement.open:
            evidence["overridden"] = [requirement.name for requirement in judgement.open]
    return doctor.adopt(name, alias, actor=context.actor, reason=reason, evidence=evidence)


def _refuse(judgement: Judgement, reason: str) -> None:
    """Taking over what somebody did must not be easier than doing it oneself."""
    ref, alias = judgement.version.ref, judgement.alias
    barred = [one for one in judgement.open if not one.lift or one.name in {QUARANTINE, SELF_CHECK}]
    if barred:
        back = f"mlx doctor registry {judgement.version.name} --repair"
        way = barred[0].command or judgement.by_hand or f"mlx gate {ref} --to {alias}"
        raise GateFailedError(
            f"{ref} cannot be adopted as {alias}: {barred[0].name} ({barred[0].check.measured}).",
            hint=f"To go on with it: {way}. To put the journal's holder back: {back}",
            gates=[requirement.document() for requirement in judgement.open],
        )
    if judgement.open and not reason.strip():
        raise GateFailedError(
            f"{ref} lacks what {alias} asks for: {judgement.reasons}.",
            hint="Adopting it all the same needs a reason: add --reason 'why it is right'.",
            gates=[requirement.document() for requirement in judgement.open],
        )


def _examine(context: Context, name: str | None, *, deep: bool) -> _Round:
    doctor, now = context.catalog.doctor, context.clock()
    findings = [*doctor.registry(now), *_folders(context)] if name is None else []
    models = [doctor.examine(known) for known in ((name,) if name else doctor.names())]
    for model in models:
        findings += examine_model(model, now)
    return _Round((*findings, *_bytes(context, models, deep=deep)), tuple(models))


def _bytes(context: Context, models: Iterable[Examined], *, deep: bool) -> list[Finding]:
    sealed = [(model, version) for model in models for version in model.versions if version.digest]
    broken: dict[str, list[Finding]] = {}
    stage = "reading every package" if deep else "looking for every package"
    with context.progress.stage(stage, total=len(sealed)) as advance:
        for model, version in sealed:
            finding = context.catalog.doctor.check_bytes(version, deep=deep)
            if finding and not finding.sound:
                finding = replace(finding, command=bytes_remedy(model, version))
            broken.setdefault(version.name, []).extend([finding] if finding else [])
            advance(1)
    found = []
    for name, wrong in broken.items():
        count = sum(version.name == name for _, version in sealed)
        found += wrong
        if all(finding.sound for finding in wrong):
            expected = "every byte as registered" if deep else "every file in its place"
            measured = plural(count, "package")
            found.append(Finding("bytes", name, sound=True, measured=measured, expected=expected))
    return found


def _folders(context: Context) -> list[Finding]:
    settings = context.settings
    places = [settings.path(settings.cache.dir) / "packages", settings.folder / FALLBACK / "packages"]
    return [
        Finding(
            "folder",
            printable(str(folder), 300),
            sound=True,
            measured="older than a day, in no use",
            expected="gone with its command",
            note=f"An interrupted command left {printable(str(folder), 300)} behind.",
            command="mlx doctor registry --repair",
            repair="folder",
        )
        for folder in stale_folders(places, context.clock())
        if str(folder).isprintable()  # any other one would not be found by the name that is shown
    ]


def _repair(context: Context, found: _Round) -> tuple[str, ...]:
    doctor, done = context.catalog.doctor, []
    models = {model.name: model for model in found.models}
    for finding in found.repairable:
        subject = finding.subject
        if finding.repair == "alias":
            name, _, alias = subject.partition("@")
            doctor.settle(name, alias)
            done.append(f"MLflow's {subject} is {holder_text(models[name].journal.holder(alias))} again.")
        elif finding.repair == "anchor":
            doctor.settle(subject, None)
            done.append(f"The anchor of {subject} is at its last event.")
        elif finding.repair == "label":
            name, _, number = subject.partition("/")
            version = models[name].version(int(number))
            if version:
                doctor.name_version(version)
            done.append(f"{subject} has its label.")
        elif finding.repair == "rollout":
            doctor.tidy(subject)
            done.append(f"What a rollout of {subject} left behind was removed.")
        elif finding.repair == "registration":
            doctor.discard(subject)
            done.append(f"{subject} was removed.")
        elif finding.repair == "folder":
            remove_folder(Path(subject))
            done.append(f"{subject} was removed.")
    return tuple(done)


def _result(
    context: Context,
    name: str | None,
    found: _Round,
    adopted: list[Event],
    repaired: tuple[str, ...],
    *,
    deep: bool,
) -> Result:
    what = name or context.catalog.shown
    broken = found.broken
    taken = [f"{event.model}@{event.alias} is {holder_text(event.to_version)}, adopted." for event in adopted]
    said = (
        f"{plural(len(broken), 'thing')} of {what} {'is' if len(broken) == 1 else 'are'} not as it must be."
        if broken
        else f"{what} is sound."
    )
    return Result(
        command="doctor registry",
        data={
            "registry": context.catalog.shown,
            "name": name,
            "healthy": not broken,
            "deep": deep,
            "findings": [finding.document() for finding in found.findings],
            "repaired": list(repaired),
            "adopted": [event.document() for event in adopted],
        },
        report=Report(
            title=f"doctor {what}",
            summary=" ".join((said, *taken, *repaired)),
            checks=tuple(finding.as_check() for finding in sorted(found.findings, key=_weight)),
            next_steps=_next_steps(broken, name),
        ),
        verdict=Verdict.FAIL if broken else Verdict.PASS,
        warnings=tuple(finding.note for finding in found.findings if finding.sound and finding.note),
        code=BROKEN if broken else None,
    )


def _weight(finding: Finding) -> bool:
    return finding.sound


def _next_steps(broken: tuple[Finding, ...], name: str | None) -> tuple[str, ...]:
    steps = [finding.command for finding in broken if finding.command]
    if any(finding.repair for finding in broken):
        steps.insert(0, f"mlx doctor registry {f'{name} ' if name else ''}--repair")
    return tuple(dict.fromkeys(steps))[:5]
