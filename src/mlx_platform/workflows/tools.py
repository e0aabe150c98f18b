"""Which tools a finding was made with."""

import platform
from importlib.metadata import PackageNotFoundError, version

_TOOLS = ("mlx-platform", "numpy", "onnxruntime")


def tool_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found
