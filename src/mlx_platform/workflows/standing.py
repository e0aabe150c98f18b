"""How versions stand with the aliases that they once held."""

from mlx_platform.core.errors import IntegrityError
from mlx_platform.workflows.context import Context


def rolled_back(context: Context, name: str) -> dict[int, tuple[str, ...]]:
    """By version of a model, the aliases rolled back from it and not regained; none where nobody can tell."""
    try:
        journal = context.catalog.journal(name)
    except IntegrityError:
        return {}
    found: dict[int, tuple[str, ...]] = {}
    for alias in journal.aliases():
        for number in journal.rolled_back(alias):
            found[number] = (*found.get(number, ()), alias)
    return found
