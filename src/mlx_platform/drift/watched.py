"""What is watched: columns of traffic or files as the features that a profile names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_platform.core.errors import MlxError
from mlx_platform.core.tensors import Array, Columns, Tensors, text_column
from mlx_platform.drift.counts import Key
from mlx_platform.drift.extract.inputs import InputFeatures
from mlx_platform.drift.features import Positions, at_positions, positions, scalars
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.values import Column

if TYPE_CHECKING:
    from mlx_platform.inference.package import Package

_WATCHED_WIDTH = 4096
_UNUSABLE = (MlxError, LookupError, TypeError, ValueError)
"""What a log with cells that no server would write can bring about in the pipeline."""


@dataclass(frozen=True, slots=True)
class Watched:
    """Turns columns into features: by the package's pipeline, or column by column where there is none."""

    package: "Package | None"
    features: tuple[str, ...]
    places: Positions
    decode: Callable[[Tensors], Columns] | None
    look: InputFeatures | None = None
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def needs_cells(self, names: Collection[str]) -> bool:
        """Whether some column of these names is watched through what its cells hold, not as it is."""
        columns = self.package.spec.columns if self.package else ()
        return any(name in names and name not in self.features for name in columns)

    def inputs(self, columns: Columns) -> dict[str, Column]:
        """Input features [rows] by name; a column that cannot be looked at takes no other with it."""
        found: dict[str, Column] = {}
        for name, column in columns.items():
            found |= self._features(name, column)
        for name, column in at_positions(columns, self.places).items():
            if name not in found:
                found[name] = _named(column, self.categories[name]) if name in self.categories else column
        return found

    def _features(self, name: str, column: Array) -> Mapping[str, Column]:
        if self.look is None:
            return scalars(name, column, width=_WATCHED_WIDTH)
        try:
            return self.look({name: column})
        except _UNUSABLE:
            return {}

    def outputs(self, endpoint: str, columns: Columns) -> Columns | None:
        """The answers; None where a client asked for too few of the model's tensors to know them."""
        if endpoint != "infer":
            return columns or None
        if self.package is None or self.decode is None:
            return None
        if not {tensor.name for tensor in self.package.spec.outputs} <= set(columns):
            return None
        try:
            return self.decode(columns)
        except _UNUSABLE:
            return None


def served(latency_ms: Array, request_rows: Array) -> dict[Key, Column]:
    """What is watched of requests besides what they hold: how long they took, and how many rows they had.

    Only a baseline that was a log has these features; one of rows has nothing to compare them with.

    Args:
        latency_ms: of the request of each row [rows].
        request_rows: likewise.
    """
    found: dict[Key, Column] = {("output", "request.rows"): request_rows}
    if np.isfinite(latency_ms).any():
        found["output", "request.latency_ms"] = latency_ms.astype(np.float32)
    return found


def watched(package: "Package | None", profile: Profile) -> Watched:
    """What a profile's features are in the traffic of a package."""
    names = tuple(feature.name for feature in profile.of_role("input"))
    if package is None:
        return Watched(None, names, profile.positions, None)
    from mlx_platform.inference.pipeline import Pipeline

    places = {**positions(package.spec, names), **profile.positions}
    decode = Pipeline(package.spec, package.root).decode
    look = InputFeatures(package.spec, package.root, profile.vocabularies)
    return Watched(package, names, places, decode, look, _categories(package))


def _categories(package: "Package") -> dict[str, tuple[Any, ...]]:
    """The values behind the codes of every column that the pipeline turns into codes."""
    from mlx_platform.inference.steps.table import CategoriesStep

    found: dict[str, tuple[Any, ...]] = {}
    for step in package.spec.pre_steps():
        if isinstance(step, CategoriesStep):
            step.load(package.root)
            found |= dict.fromkeys(step.makes, step.values)
    return found


def _named(codes: Array, values: tuple[Any, ...]) -> Array:
    """Codes of a tensor [rows] as the categories that the baseline knows."""
    known = [int(code) if 0 <= code < len(values) else -1 for code in np.nan_to_num(codes, nan=-1).tolist()]
    return text_column([values[code] if code >= 0 else "(unknown)" for code in known])
