"""A project with a registry in it: made once per session, copied for each test."""

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_platform.core.errors import ConflictError
from mlx_platform.core.evidence import Evidence
from mlx_platform.core.settings import Settings, load_settings
from mlx_platform.core.verdict import Verdict
from mlx_platform.inference.package import Package, open_package, with_file
from mlx_platform.registry.catalog import Catalog
from mlx_platform.registry.journal import Event
from mlx_platform.registry.version import Lineage, Version
from mlx_platform.workflows.context import Context, make_context

VERSIONS = 3


@dataclass
class Project:
    """A folder with `digits/1` to `digits/3` in its registry and their sources beside it."""

    folder: Path

    @cached_property
    def settings(self) -> Settings:
        return load_settings(start=self.folder, environment=os.environ)

    @cached_property
    def context(self) -> Context:
        return make_context(self.settings)

    @property
    def catalog(self) -> Catalog:
        return self.context.catalog

    @property
    def database(self) -> Path:
        return self.folder / "mlx.db"

    def package(self, number: int) -> Package:
        """The built package of `digits/<number>`."""
        return open_package(self.folder / "packages" / str(number))

    def variant(self, text: str) -> Package:
        """A package of other content."""
        root = self.folder / "packages" / text
        shutil.copytree(self.folder / "packages" / "1", root)
        return with_file(open_package(root), "assets/variant.txt", text.encode())

    def anew(self) -> Catalog:
        """The registry as another process would see it."""
        return Catalog(self.settings)


def write_network(path: Path, scale: float) -> Path:
    """A classifier of four numbers into three labels, small enough to build in no time."""
    import onnx
    from onnx import TensorProto, helper

    weights = (np.arange(12, dtype=np.float32) * scale).tolist()
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["probabilities"]),
        ],
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [4, 3], weights),
            helper.make_tensor("b", TensorProto.FLOAT, [3], [0.0, 0.0, scale]),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def make_template(folder: Path) -> Path:
    """Build the project that tests copy, unless it is there."""
    if (folder / "mlx.db").exists():
        return folder
    from mlx_platform.inference.build import build_package

    folder.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(load_settings(start=folder, environment={}))
    for number in range(1, VERSIONS + 1):
        source = write_network(folder / f"model-{number}.onnx", float(number))
        package = build_package(source, folder / "packages" / str(number)).package
        lineage = Lineage(
            dataset_version=f"2026-{number:02d}",
            git_commit="0123456789abcdef0123456789abcdef01234567",
            params={"lr": f"0.{number}"},
            metrics={"f1": 0.9 + number / 100},
        )
        catalog.register("digits", package, lineage)
    return folder


def copy_project(template: Path, folder: Path) -> Project:
    """The test's own copy; the registry in it was moved, and must not mind."""
    shutil.copytree(template, folder)
    return Project(folder)


def evidence_of(version: Version, *, kind: str = "evaluation", verdict: Verdict = Verdict.PASS) -> Evidence:
    """A finding about a version."""
    numbers: dict[str, Any] = {"accuracy": {"value": 0.95, "lower": 0.93, "upper": 0.97}, "rows": 500}
    return Evidence(
        kind=kind,
        digest=version.digest,
        verdict=verdict,
        created=datetime(2026, 3, 8, 7, tzinfo=UTC),
        data_fingerprint="f" * 64,
        parameters={"confidence": 0.95},
        numbers=numbers,
        tools={"mlx-platform": "0.1.0"},
    )


def transit(project: Project, to: int | None, state: str = "STEP", rollout: str = "r1", **more: Any) -> Event:
    """Write a transition of a rollout of `digits`, whose stable version is 1."""
    content = {"id": rollout, "channel": "production", "stable": 1, "candidate": 2, "state": state, **more}
    candidate = None if to is None else project.catalog.resolve(f"digits/{to}")
    return project.catalog.transition("digits", content, candidate=candidate, after=None, actor="server-1")


def see_a_rollout_through(catalog: Catalog, name: str) -> None:
    """Let version 2 of a model take over from 1 as a server does, and check what others see of it."""
    candidate = catalog.resolve(f"{name}/2")
    begin = catalog.sight(name)
    assert (begin.holders, begin.head) == ({"production": 1}, 1)

    def transit(state: str, after: int, to: Version | None = candidate) -> int:
        content = {"id": "r1", "channel": "production", "stable": 1, "candidate": 2, "state": state}
        return catalog.transition(name, content, candidate=to, after=after, actor="server-1").number

    shadow = transit("SHADOW", begin.head)
    assert catalog.sight(name).holders == {"canary": 2, "production": 1}
    catalog.set_model_tags(name, {"mlx.rollout.lease": "a", "mlx.rollout.arms.a": "x" * 5000})
    catalog.delete_model_tags(name, ["mlx.rollout.arms.a", "mlx.rollout.never"])
    tags = catalog.sight(name).tags
    assert {key: tags[key] for key in tags if key.startswith("mlx.rollout.")} == {"mlx.rollout.lease": "a"}
    promoting = transit("PROMOTING", shadow)
    for late in (begin.head, shadow):
        with pytest.raises(ConflictError, match="server-1 was faster"):
            transit("ABORTED", late, None)
    moved = catalog.move(
        name, "production", 2, expect=1, kind="promote", actor="server-1", evidence={"rollout": "r1"},
        after=promoting,
    )  # fmt: skip
    assert moved
    transit("PROMOTED", moved.number, None)
    catalog.quarantine(candidate, "a test")

    assert catalog.sight(name).holders == {"production": 2}
    assert catalog.resolve(f"{name}@production").quarantined == "a test"
    ((first, *_, last),) = catalog.rollouts(name)
    assert (first.number, last.to_version) == (shadow, None)
    assert catalog.differences(name) == ()
