"""`mlx adopt`: a version that plain MLflow registered becomes a sealed version of the same model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_platform.core.errors import IntegrityError, MlxError, NotFoundError, UsageError
from mlx_platform.core.report import Fact, Report, Result, Table
from mlx_platform.core.text import plural
from mlx_platform.core.verdict import Verdict
from mlx_platform.registry.ref import NameRef, parse_ref
from mlx_platform.registry.version import ACTOR, ADOPTED_FROM, ADOPTED_HELD, Lineage, Version, check_lineage
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import version_facts
from mlx_platform.workflows.origin import origin_of
from mlx_platform.workflows.steps import evaluation_step

_STAGES = {"Staging": "staging", "Production": "production"}


@dataclass(frozen=True, slots=True)
class Adopted:
    """What came of one version: the sealed one, or the error that says why there is none.

    With a dry run `sealed` is what is there already, if anything; `moves` are the commands that would give it
    what the other one holds.
    """

    version: Version
    held: str
    digest: str = ""
    sealed: Version | None = None
    created: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    moves: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: MlxError | None = None

    def document(self) -> dict[str, Any]:
        return {
            "from": self.version.ref,
            "held": self.held,
            "digest": self.digest,
            "ref": self.sealed.ref if self.sealed else None,
            "version": self.sealed.number if self.sealed else None,
            "created": self.created,
            "params": dict(self.lineage.params),
            "metrics": dict(self.lineage.metrics),
            "dataset_version": self.lineage.dataset_version,
            "git_commit": self.lineage.git_commit,
            "next": list(self.moves),
            "error": {"code": self.error.code, "message": self.error.message, "hint": self.error.hint}
            if self.error
            else None,
        }


def adopt(context: Context, ref: str, *, dry_run: bool = False) -> Result:
    """Register the model of an unsealed version as a sealed one, with what its run knows about it.

    No alias moves: what the old version holds is proposed for the new one, and `mlx promote` moves it through
    its gates. Adopting again finds the version that is there.

    Args:
        context: the command's context.
        ref: a version, or a model's name for every unsealed version that holds an alias or a stage.
        dry_run: build the packages and say what would be registered, and write nothing to the registry.

    Returns:
        A result that ends with 7 when some of several versions cannot be adopted.

    Raises:
        NotFoundError: no such model, version, alias or label.
        UsageError: the version is no ONNX model; says what it is.
        IntegrityError: its bytes are gone, or said to be where no model may be read.
    """
    parsed = parse_ref(ref)
    if isinstance(parsed, NameRef):
        return _adopt_all(context, parsed.name, dry_run=dry_run)
    version = context.catalog.resolve(parsed)
    if version.sealed:
        return _sealed_already(version)
    return _result_of_one(context, _adopt(context, version, dry_run=dry_run), dry_run=dry_run)


def _adopt_all(context: Context, name: str, *, dry_run: bool) -> Result:
    versions = context.catalog.versions(name, limit=None)
    wanted = [version for version in reversed(versions) if not version.sealed and _held(version)]
    found = []
    for version in wanted:
        try:
            found.append(_adopt(context, version, dry_run=dry_run))
        except (UsageError, IntegrityError, NotFoundError) as error:
            found.append(Adopted(version, _held(version), error=error))
    return _result_of_all(context, name, found, dry_run=dry_run)


def _adopt(context: Context, version: Version, *, dry_run: bool) -> Adopted:
    origin = origin_of(context, version)
    package = origin.package
    if package is None:
        raise IntegrityError(f"{version.ref} has no package.")
    lineage = replace(
        origin.lineage,
        tags={
            **origin.lineage.tags,
            ACTOR: context.actor,
            ADOPTED_FROM: version.ref,
            ADOPTED_HELD: _held(version),
        },
    )
    lineage = replace(lineage, tags={key: text for key, text in lineage.tags.items() if text})
    check_lineage(lineage)
    if dry_run:
        sealed, created = context.catalog.same_content(version.name, package), False
    else:
        with context.progress.stage(f"adopting {version.ref}"):
            sealed, created = context.catalog.register(version.name, package, lineage)
    target = sealed.ref if sealed else f"{version.name}/NUMBER"
    return Adopted(
        version=version,
        held=_held(version),
        digest=package.digest,
        sealed=sealed,
        created=created,
        lineage=lineage,
        moves=tuple(_moves(context, version, target)),
        warnings=origin.warnings,
    )


def _held(version: Version) -> str:
    """What people had given a version: its aliases, and a stage that means something."""
    words = [f"alias {alias}" for alias in version.aliases]
    if version.stage in _STAGES:
        words.append(f"stage {version.stage}")
    return ", ".join(words)


def _moves(context: Context, version: Version, target: str) -> Iterable[str]:
    holders = context.catalog.holders(version.name)
    staged = [_STAGES[version.stage]] if version.stage in _STAGES else []
    for alias in dict.fromkeys((*version.aliases, *staged)):
        holder = holders.get(alias)
        if target != f"{version.name}/{holder}":
            yield f"mlx promote {target} --to {alias} --expect {holder or 'none'}"


def _sealed_already(version: Version) -> Result:
    return Result(
        command="adopt",
        data={"name": version.name, "adopted": [], "ref": version.ref, "created": False, "dry_run": False},
        report=Report(
            title=f"adopt {version.ref}",
            summary=f"{version.ref} is sealed already; nothing changed.",
            facts=version_facts(version)[1:],
            next_steps=(f"mlx show {version.ref}",),
        ),
    )


def _result_of_one(context: Context, found: Adopted, *, dry_run: bool) -> Result:
    version, sealed = found.version, found.sealed
    if sealed and not found.created:
        summary = f"{version.ref} is there as {sealed.ref} already; nothing changed."
    elif sealed:
        summary = f"Adopted {version.ref} as {sealed.ref}."
    else:
        summary = f"{version.ref} can be adopted; nothing was written."
    known = {
        "digest": found.digest,
        "held": found.held,
        "dataset": found.lineage.dataset_version,
        "commit": found.lineage.git_commit,
        "parameters": _pairs(found.lineage.params),
        "metrics": _pairs(found.lineage.metrics),
    }
    facts = (
        version_facts(sealed)[1:] if sealed else tuple(Fact(key, text) for key, text in known.items() if text)
    )
    return Result(
        command="adopt",
        data={
            "name": version.name,
            "adopted": [found.document()],
            "ref": sealed.ref if sealed else None,
            "created": found.created,
            "dry_run": dry_run,
        },
        report=Report(
            title=f"adopt {version.ref}",
            summary=summary,
            facts=facts,
            next_steps=(f"mlx adopt {version.ref}",)
            if not sealed
            else _steps(context, found) or (f"mlx show {sealed.ref}",),
        ),
        warnings=found.warnings,
    )


def _steps(context: Context, found: Adopted) -> tuple[str, ...]:
    """How the sealed version gets what the other one holds: evaluated first, where the alias asks for it."""
    if found.sealed is None:
        return ()
    gated = any(" --to production " in move for move in found.moves)
    return (*([evaluation_step(context, found.sealed)] if gated else []), *found.moves)


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(values.items())[:10])


def _result_of_all(context: Context, name: str, found: list[Adopted], *, dry_run: bool) -> Result:
    refused = [one for one in found if one.error]
    done = len(found) - len(refused)
    verb = "can be adopted; nothing was written" if dry_run else "adopted"
    rows = tuple(
        (
            one.version.ref,
            one.held,
            one.sealed.ref if one.sealed else "",
            one.error.message
            if one.error
            else "new"
            if one.created
            else "was there"
            if one.sealed
            else "can be",
        )
        for one in found
    )
    table = Table("", ("version", "holds", "sealed as", "outcome"), rows)
    summary = f"{plural(done, 'version')} of {name} {verb}."
    if not found:
        summary = f"No unsealed version of {name} holds an alias or a stage."
    return Result(
        command="adopt",
        data={
            "name": name,
            "adopted": [one.document() for one in found if not one.error],
            "refused": [one.document() for one in refused],
            "created": any(one.created for one in found),
            "dry_run": dry_run,
        },
        report=Report(
            title=f"adopt {name}",
            summary=summary,
            sections=(table,) if rows else (),
            next_steps=(f"mlx adopt {name}",)
            if dry_run and done
            else tuple(step for one in found for step in _steps(context, one)) or (f"mlx list {name}",),
        ),
        verdict=Verdict.ERROR if refused else None,
        warnings=tuple(warning for one in found for warning in one.warnings),
    )
