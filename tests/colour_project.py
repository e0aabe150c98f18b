"""A registry with two versions of `colours`, made once per session, and a clock that tests set."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from linear_models import classifier, pack

from mlx_platform.core.evidence import Evidence
from mlx_platform.core.settings import Settings, load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.model import Model
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.version import Lineage, Version
from mlx_platform.workflows.context import Context, make_context
from mlx_platform.workflows.subject import open_model, open_subject

NAME = "colours"
DAY = datetime(2026, 3, 8, tzinfo=UTC)
MOVED = DAY + timedelta(hours=14)


@dataclass
class ColourProject:
    """`colours/1` is sure of its answers and `colours/2` a little less."""

    folder: Path
    now: datetime = datetime(2026, 3, 9, 2, 10, tzinfo=UTC)
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.context = make_context(self.settings, clock=lambda: self.now)

    @property
    def settings(self) -> Settings:
        return load_settings(start=self.folder, environment={"MLX_CACHE_DIR": str(self.folder / "cache")})

    def model(self, ref: str) -> Model:
        with open_subject(self.context, ref) as subject:
            return open_model(self.context, subject, device="cpu")

    def promote(self, number: int, at: datetime) -> None:
        """Move production, at a time of its own."""
        then = Catalog(self.settings, lambda: at)
        then.move(NAME, "production", number, kind="promote", actor="tester")


def make_colours(folder: Path) -> Path:
    """Build the project that tests copy."""
    catalog = Catalog(load_settings(start=folder, environment={}))
    for number, scale in ((1, 5.0), (2, 3.0)):
        package = pack(classifier(folder / "sources" / str(number), scale * np.eye(3)))
        catalog.register(NAME, package, Lineage())
    return folder


def copy_colours(template: Path, folder: Path) -> ColourProject:
    shutil.copytree(template, folder)
    return ColourProject(folder)


def evaluation(version: Version, numbers: Mapping[str, Any]) -> Evidence:
    """An offline evaluation that passed."""
    return Evidence(
        kind="evaluation",
        digest=version.digest,
        verdict=Verdict.PASS,
        created=DAY,
        data_fingerprint="f" * 64,
        parameters={"confidence": 0.95},
        numbers=numbers,
        tools={},
    )


def damage(project: ColourProject, ref: str) -> None:
    """Spoil the bytes of a version, here and in the cache."""
    version = project.context.catalog.resolve(ref)
    shutil.rmtree(project.folder / "cache")
    (path,) = [
        path for path in (project.folder / "mlx-artifacts").rglob("model.onnx") if _is_of(path, version)
    ]
    path.write_bytes(b"")


def _is_of(model: Path, version: Version) -> bool:
    return hashlib.sha256((model.parent / "manifest.json").read_bytes()).hexdigest() == version.digest
