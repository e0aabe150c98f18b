"""`mlx archive`: a version out of sight and out of reach of promotions, with its bytes kept."""

from mlx_platform.core.report import Fact, Report, Result
from mlx_platform.registry.journal import check_reason
from mlx_platform.registry.removal import DELETING
from mlx_platform.registry.version import Version
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import version_facts


def archive(context: Context, ref: str, *, undo: bool = False, reason: str = "") -> Result:
    """Put a version into the archive, or take it out; again changes nothing.

    Args:
        context: the command's context.
        ref: the version.
        undo: take it out.
        reason: why; recorded with who did it.

    Raises:
        ConflictError: it holds an alias.
        NotFoundError: no such version.
    """
    check_reason(reason)
    version = context.catalog.resolve(ref)
    left = undo and version.tags.get(DELETING)  # by somebody who began to delete it, and did not
    if version.archived is not undo and not left:
        return _result(version, version, undo, ())
    removal = context.catalog.removal
    uses = () if undo else removal.uses(version)
    act = removal.restore if undo else removal.archive
    act(version, actor=context.actor, reason=reason)
    return _result(version, context.catalog.resolve(version.ref), undo, uses)


def _result(before: Version, after: Version, undo: bool, uses: tuple[str, ...]) -> Result:
    changed = before is not after
    done = f"{after.ref} is {'no longer archived' if undo else 'archived'}."
    return Result(
        command="archive",
        data=after.document() | {"changed": changed, "before": before.state, "after": after.state},
        report=Report(
            title=f"archive {after.ref}",
            summary=done if changed else f"{after.ref} is {after.state} already; nothing changed.",
            facts=(Fact("before", before.state), *version_facts(after)[1:4]) if changed else (),
            next_steps=(f"mlx list {after.name}" if undo else f"mlx archive {after.ref} --undo",),
        ),
        warnings=tuple(f"{use}; while it is archived, a rollback passes over it." for use in uses),
    )
