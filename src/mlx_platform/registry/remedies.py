"""What to do about a version that should not be used, or cannot be: commands that do it as they stand."""

from mlx_platform.core.errors import IntegrityError
from mlx_platform.registry.examined import Examined
from mlx_platform.registry.removal import uses_of
from mlx_platform.registry.version import Version

JOURNAL_PAGE = "docs/registry.md, Doctor"


def without_bytes(version: Version, error: IntegrityError) -> IntegrityError:
    """The error of a package that is missing or changed: which version's it is, and what to do about it."""
    if version.aliases:
        hint = f"Go back to the version before: mlx rollback {version.name}@{version.aliases[0]}"
    else:
        hint = (
            f"Restore its bytes from a backup, or give it up with: mlx delete {version.ref} - and register "
            "the model again."
        )
    return IntegrityError(f"{version.ref} cannot be used. {error.message}", hint=hint, **error.details)


def holder_remedy(model: Examined, alias: str) -> str:
    """How an alias gets away from its holder: back, or else to a version that must pass its gates."""
    lost = model.journal.rolled_back(alias)
    for number in model.journal.rollback_targets(alias):
        target = model.version(number)
        if target and _sound(target) and number not in lost:
            return f"mlx rollback {model.name}@{alias}"
    holder = model.journal.holder(alias) or model.aliases.get(alias)
    others = (one for one in model.versions if _sound(one) and one.number not in {holder, *lost})
    newest = max(others, key=lambda one: one.number, default=None)
    return f"mlx gate {newest.ref} --to {alias}" if newest else f"mlx list {model.name} --all"


def bytes_remedy(model: Examined, version: Version) -> str:
    """What to do with a version whose bytes are gone; with a broken journal that comes first."""
    if model.journal.problems:
        return journal_remedy(model.name)
    if version.aliases:
        return holder_remedy(model, version.aliases[0])
    uses = uses_of(
        version.number,
        name=model.name,
        journal=model.journal,
        holders={alias: held for alias in model.journal.aliases() if (held := model.journal.holder(alias))},
        mlflow=model.aliases,
        sound=lambda number: bool((found := model.version(number)) and _sound(found)),
    )
    # What a rollback would go back to cannot be deleted; once it is archived, rollbacks pass over it.
    return f"mlx archive {version.ref} --reason 'bytes lost'" if uses else f"mlx delete {version.ref}"


def journal_remedy(name: str) -> str:
    """Nothing repairs a journal: what is there still, and where it is written how to begin anew."""
    return f"mlx list {name} --all  # without a backup, begin its journal anew: {JOURNAL_PAGE}"


def _sound(version: Version) -> bool:
    return version.sealed and not version.archived and not version.quarantined
