"""A version in the caller's own process, for notebooks and batch jobs."""

import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_platform.core.settings import load_settings
from mlx_platform.workflows.context import make_context
from mlx_platform.workflows.subject import open_model, open_subject

if TYPE_CHECKING:
    from mlx_platform.inference.model import Model


def load_reference(reference: str, *, device: str = "auto", config: Path | None = None) -> "Model":
    """Resolve, verify and load a version; see `mlx_platform.load`."""
    context = make_context(load_settings(config))
    with ExitStack() as stack:
        subject = stack.enter_context(open_subject(context, reference))
        model = open_model(context, subject, device=device)
        # An unregistered file's package is a temporary folder; it must live as long as the model.
        weakref.finalize(model, stack.pop_all().close)
        return model
