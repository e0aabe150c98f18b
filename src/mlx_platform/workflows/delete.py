"""`mlx delete`: a version and its bytes gone for good, unless somebody needs them."""

from collections.abc import Callable

from mlx_platform.core.errors import NotFoundError
from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.registry.journal import check_reason
from mlx_platform.registry.ref import LabelRef, VersionRef, parse_ref
from mlx_platform.registry.tombstone import Tombstone
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import size_text, version_facts


def delete(context: Context, ref: str, *, reason: str = "", confirm: Callable[[str], bool]) -> Result:
    """Delete a version that holds no alias and that no rollback goes back to.

    Its number is not given out again, and what the journal says of it stays. Of a version that was deleted
    before only the bytes are looked after, which an interrupted deletion may have left behind.

    Args:
        context: the command's context.
        ref: the version.
        reason: why; recorded with who did it.
        confirm: asked with a sentence, once nothing stands in the way; deletes nothing unless it says yes.

    Raises:
        ConflictError: the version is in use; says by whom.
        NotFoundError: there never was such a version.
    """
    check_reason(reason)
    try:
        version = context.catalog.resolve(ref)
    except NotFoundError as error:
        return _again(context, ref, error)
    context.catalog.removal.refuse_used(version)
    size = f" of {size_text(version.size)}" if version.size else ""
    if not confirm(f"Delete {version.ref} ({version.label}) and its package{size} for good?"):
        return _result(version.name, _stone(version), changed=False, said=f"{version.ref} was not deleted.")
    tombstone = context.catalog.removal.delete(version, actor=context.actor, reason=reason)
    return _result(
        version.name,
        tombstone,
        changed=True,
        said=f"Deleted {version.ref}.",
        facts=version_facts(version)[1:],
    )


def _again(context: Context, text: str, error: NotFoundError) -> Result:
    """What to say of a version that is gone already."""
    ref = parse_ref(text)
    if not isinstance(ref, VersionRef | LabelRef) or "deleted" not in error.details:
        raise error
    tombstone = context.catalog.removal.deleted(ref.name)[ref.number]
    context.catalog.removal.erase(tombstone.source, f"{ref.name}/{ref.number}")
    return _result(ref.name, tombstone, changed=False, said=tombstone.sentence(ref.name))


def _stone(version: Version) -> Tombstone:
    return Tombstone(version.number, version.label, version.digest, version.source, "", "", "")


def _result(
    name: str, tombstone: Tombstone, *, changed: bool, said: str, facts: tuple[Fact, ...] = ()
) -> Result:
    return Result(
        command="delete",
        data={"ref": f"{name}/{tombstone.number}", "name": name, "changed": changed} | tombstone.document(),
        report=Report(
            title=f"delete {name}/{tombstone.number}",
            summary=said,
            facts=facts,
            next_steps=(f"mlx list {name}",),
        ),
    )
