"""Takes a model from a training script to production traffic, and keeps it honest there.

The rooms, each importing only what stands below it:

    cli
    workflows
    serving
    evaluation | drift | quantize | registry
    inference | traffic
    core
"""

from mlx_platform.core.version import VERSION

# Not from `typing`: the less is loaded here, the sooner the command line takes care of Ctrl-C.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from mlx_platform.inference.model import Model

__version__ = VERSION
__all__ = ["__version__", "load"]


def load(reference: str, *, device: str = "auto", config: "Path | None" = None) -> "Model":
    """Load a version into this process: the same code path as evaluation and the server.

    Args:
        reference: `digits@production`, `digits/3`, a label, or a package folder or `.onnx` file.
        device: `auto`, `cuda` or `cpu`.
        config: the settings file, by default the nearest `mlx.toml`.

    Returns:
        A model; `model.predict(rows)` answers a batch of raw inputs.

    Raises:
        MlxError: see `mlx_platform.core.errors`.
    """
    from mlx_platform.workflows.load import load_reference

    return load_reference(reference, device=device, config=config)
