"""`mlx resolve`: which version a reference means."""

from mlx_platform.core.report import Report, Result
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.describe import version_facts
from mlx_platform.workflows.subject import alias_warnings, not_sealed


def resolve(context: Context, ref: str) -> Result:
    """Say which version a reference means; the summary is `NAME/NUMBER` and nothing else, for scripts.

    Raises:
        NotFoundError: no such model, version, alias or label.
        UsageError: no reference to a version.
    """
    version = context.catalog.resolve(ref)
    return Result(
        command="resolve",
        data=version.document(),
        report=Report(title="resolve", summary=version.ref, facts=version_facts(version)[1:]),
        warnings=(*alias_warnings(context, ref), *not_sealed(version)),
    )
