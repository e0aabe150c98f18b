"""The embedding model of the semantic cache, for the models whose texts it may compare."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import SemanticCacheSettings
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.subject import open_model, open_subject

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model


@contextmanager
def open_embedder(
    context: Context, settings: SemanticCacheSettings, name: str, *, device: str = "auto"
) -> "Iterator[Model | None]":
    """Load the embedding model for as long as the block runs; None where `name` has no semantic cache.

    Args:
        context: the command's context.
        settings: which models have one, and which model makes the vectors.
        name: the model that is served.
        device: see `open_model`.

    Raises:
        NotFoundError: there is no such embedding model.
        UsageError: none is named.
    """
    if not any(fnmatchcase(name, pattern) for pattern in settings.models):
        yield None
        return
    if not settings.model:
        raise UsageError(
            "serving.semantic_cache.models names this model, and no embedding model is named.",
            hint='Name a registered one: model = "NAME@ALIAS" in [serving.semantic_cache].',
        )
    with open_subject(context, settings.model) as subject:
        # One thread: it works beside the model that is served.
        yield open_model(context, subject, device=device, threads=1)
