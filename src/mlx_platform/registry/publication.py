"""What a new version is created with."""

import tomllib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mlx_platform.core.text import printable
from mlx_platform.registry.version import (
    ACTOR,
    CONTENT,
    DIGEST,
    ENVIRONMENT,
    GIT_COMMIT,
    INPUTS,
    OUTPUTS,
    SIZE,
    TASK,
    Lineage,
)

if TYPE_CHECKING:
    from mlx_platform.core.tensors import TensorSpec
    from mlx_platform.inference.package import Package
    from mlx_platform.registry.rest import RestStore
    from mlx_platform.registry.store import Store

_NAMED = ("onnxruntime", "onnxruntime-gpu", "onnx", "numpy")


def publish(store: "Store | RestStore", name: str, package: "Package", lineage: Lineage) -> int:
    """Upload a package and make it the next version of a model, with everything known about it in its tags.

    Returns:
        The version's number.
    """
    commit = lineage.git_commit.removesuffix("+dirty")
    run_tags = {
        "mlflow.source.git.commit": commit,
        "mlflow.user": lineage.tags.get(ACTOR, ""),
        DIGEST: package.digest,
        GIT_COMMIT: lineage.git_commit,
    }
    tags = {
        DIGEST: package.digest,
        CONTENT: package.content_digest,
        SIZE: str(package.size),
        TASK: package.spec.task,
        INPUTS: _signature(package.spec.inputs),
        OUTPUTS: _signature(package.spec.outputs),
        ENVIRONMENT: _environment(package),
    }
    return store.publish(
        name,
        package.root,
        tags=tags | lineage.as_tags(),
        params=lineage.params,
        metrics=lineage.metrics,
        run_tags={key: value for key, value in run_tags.items() if value},
        description=lineage.description,
    )


def _environment(package: "Package") -> str:
    """The versions that matter most of those that the package was built with, as one line."""
    from mlx_platform.inference.package import LOCK

    try:
        lock = tomllib.loads((package.root / LOCK).read_text())
    except (OSError, ValueError):
        return ""
    packages = lock.get("packages")
    known = packages if isinstance(packages, dict) else {}
    found = [f"python {lock.get('python', '?')}", str(lock.get("platform", "?"))]
    return printable(", ".join(found + [f"{name} {known[name]}" for name in _NAMED if name in known]), 500)


def _signature(tensors: "Iterable[TensorSpec]") -> str:
    return printable("; ".join(str(tensor) for tensor in tensors), 4000)
