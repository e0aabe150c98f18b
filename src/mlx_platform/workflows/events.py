"""Telling sinks of a move right after it was made."""

from mlx_platform.registry.telling import tell_pending
from mlx_platform.workflows.context import Context


def deliver_pending(context: Context, name: str) -> tuple[str, ...]:
    """Try once, and quickly, to tell every sink of the moves of a model that it has not been told of yet.

    Returns:
        One warning for each sink that is still to be told.
    """
    return tell_pending(context.settings, context.clock, name)
