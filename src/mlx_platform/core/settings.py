"""Settings: `mlx.toml`, then `MLX_*` in the environment, then flags, each overriding the one before.

The file holds data only; an unknown key is an error that names the closest known one.
"""

import os
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mlx_platform.core.clock import DURATION
from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.rollout_settings import RolloutSettings
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tables import HIDDEN, read_table, setting
from mlx_platform.core.values import frozen

FILE_NAME = "mlx.toml"
FILE_CAP = 256 * 1024  # bytes
_DEPTH_CAP = 20


@frozen
class RegistrySettings:
    """`uri` is any MLflow tracking URI; a relative SQLite path belongs to the file's folder.

    `artifacts` is where packages are kept; `sources` are the other folders and URIs of stores from which a
    model that plain MLflow registered may be read.
    """

    uri: str = "sqlite:///mlx.db"
    artifacts: str = "mlx-artifacts"
    sources: tuple[str, ...] = ("mlruns", "mlartifacts")
    timeout: float = setting(10.0, gt=0, le=600, description="seconds to wait for a busy or silent registry")


@frozen
class CacheSettings:
    dir: str = "~/.cache/mlx"


EvidenceKind = Literal["evaluation", "quantization", "consistency", "online", "shadow", "rollout"]


@frozen
class PromotionSettings:
    """What an alias needs before it may move: kinds of evidence, each passed for the very digest.

    `min_age` is how long a version must have been registered, `max_evidence_age` how old evidence may be.
    """

    needs: tuple[EvidenceKind, ...] = ()
    min_age: str = setting("", pattern=f"({DURATION})?", description="such as 30m, 2h or 1d")
    max_evidence_age: str = setting("", pattern=f"({DURATION})?", description="such as 12h or 30d")
    allow_override: bool = True


_DEFAULT_NEEDS: Mapping[str, tuple[EvidenceKind, ...]] = {"staging": (), "production": ("evaluation",)}


def _default_promotion() -> dict[str, PromotionSettings]:
    return {alias: PromotionSettings(needs=needs) for alias, needs in _DEFAULT_NEEDS.items()}


@frozen
class MetricSettings:
    """A metric of the project's own: a Python function of truth, answer, probabilities and weights."""

    function: str = setting("", pattern=r"[\w.]+:\w+", description="such as pkg.module:function")
    higher_is_better: bool = True
    unit: str = ""


_AMOUNT = r"\d+(\.\d+)?\s*(pp|abs|%rel)"


@frozen
class EvaluationSettings:
    """`gates` names a gate file; relative paths belong to the settings file's folder.

    `gate`, `defaults`, `baseline` and `guard` are what would be in that file, in the settings themselves:
    `gate` for its `gates`. They are checked where gates are.
    """

    gates: str = ""
    gate: tuple[dict[str, object], ...] = ()
    defaults: dict[str, object] = field(default_factory=dict)
    baseline: str = ""
    guard: str = ""
    label: str = "label"
    id: str = ""
    weight: str = ""
    max_difference: str = setting(
        "", pattern=f"({_AMOUNT})?", description="of live traffic from offline, such as 2pp or 2%rel"
    )
    metrics: dict[str, MetricSettings] = field(default_factory=dict)


@frozen
class FeatureSettings:
    """What is special about a feature: how much it counts, and limits of its own."""

    weight: float = setting(1.0, ge=0, le=1e6, description="importance; 0 shows it and decides nothing")
    warn: float | None = setting(None, gt=0)
    drift: float | None = setting(None, gt=0)


@frozen
class DriftSettings:
    """When a window of traffic has drifted: any feature, a share of them, or of their weights."""

    warn: float = setting(0.1, gt=0, description="sample-size-adjusted PSI from which a feature warns")
    drift: float = setting(0.2, gt=0, description="sample-size-adjusted PSI from which a feature has drifted")
    policy: Literal["any", "share", "weighted"] = "any"
    share: float = setting(0.3, gt=0, le=1)
    features: dict[str, FeatureSettings] = field(default_factory=dict)

    def weight(self, feature: str) -> float:
        """The importance of a feature."""
        special = self.features.get(feature)
        return special.weight if special else 1.0

    def limits(self, feature: str) -> tuple[float, float]:
        """The PSI from which a feature warns, and from which it has drifted."""
        special = self.features.get(feature, FeatureSettings())
        return special.warn or self.warn, special.drift or self.drift


@frozen
class DatasetSettings:
    dir: str = setting("datasets", description="folder of the labels that came back")


@frozen
class ConsistencySettings:
    min_agreement: float = setting(0.99, gt=0, le=1, description="share of requests that must agree")


@frozen
class QuantizationSettings:
    """What a quantized version may lose: of accuracy, or for a regression by how much its error may rise.

    Empty takes the defaults 1pp and 2%rel. What stands here also holds for promotion: evidence that was
    judged by a wider limit does not count.
    """

    max_drop: str = setting("", pattern=f"({_AMOUNT})?", description="such as 1pp, 0.01abs or 1%rel")
    max_rise: str = setting("", pattern=f"({_AMOUNT})?", description="such as 2%rel or 0.1abs")


EventKind = Literal["promote", "rollback", "adopt", "rollout", "drift"]


@frozen
class SinkSettings:
    """Who is told of moves, and of which: names of models and aliases are patterns such as `fraud-*`.

    Secrets are not in the file: `secret_env` names the variable with the key that signs, and `headers_env`
    maps further headers to the variables with their values. `start` is where a sink begins that is new.
    """

    name: str = setting("", pattern="[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
    kind: Literal["webhook", "command"] = "webhook"
    url: str = ""
    secret_env: str = ""
    headers_env: dict[str, str] = field(default_factory=dict)
    allow_http: bool = False
    command: tuple[str, ...] = ()
    models: tuple[str, ...] = ("*",)
    aliases: tuple[str, ...] = ("*",)
    kinds: tuple[EventKind, ...] = ("promote", "rollback", "adopt", "rollout")
    start: Literal["now", "beginning"] = "now"
    timeout: float = setting(10.0, gt=0, le=300, description="seconds for one attempt")
    max_attempts: int = setting(10, ge=1, le=100, description="before an event is parked")


@frozen
class EventSettings:
    """Who is told when an alias has moved."""

    sinks: tuple[SinkSettings, ...] = ()


@frozen
class Settings:
    """Everything that can be configured. `folder` is where relative paths start, `source` the file."""

    folder: Path = field(default_factory=Path.cwd, metadata=HIDDEN)
    source: Path | None = field(default=None, metadata=HIDDEN)
    actor: str = ""
    registry: RegistrySettings = RegistrySettings()
    cache: CacheSettings = CacheSettings()
    promotion: dict[str, PromotionSettings] = field(default_factory=_default_promotion)
    evaluation: EvaluationSettings = EvaluationSettings()
    drift: DriftSettings = DriftSettings()
    consistency: ConsistencySettings = ConsistencySettings()
    dataset: DatasetSettings = DatasetSettings()
    serving: ServingSettings = ServingSettings()
    quantization: QuantizationSettings = QuantizationSettings()
    events: EventSettings = EventSettings()
    rollout: RolloutSettings = RolloutSettings()

    def path(self, text: str) -> Path:
        """A configured path: `~` expanded, relative ones against the settings file's folder."""
        return self.folder / Path(text).expanduser()

    def written(self, path: Path) -> str:
        """A path as somebody writes it who works in the settings file's folder, where it lies within."""
        whole = path.resolve()
        return str(whole.relative_to(self.folder)) if whole.is_relative_to(self.folder) else str(path)


_REGISTRY_VARIABLES = ("MLX_REGISTRY", "MLFLOW_REGISTRY_URI", "MLFLOW_TRACKING_URI")
_RESERVED_VARIABLES = {"MLX_REGISTRY", "MLX_CONFIG"}


def load_settings(
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    start: Path | None = None,
) -> Settings:
    """Read the settings.

    Args:
        config: the file that `--config` names; otherwise `MLX_CONFIG`, else `mlx.toml` in `start` or the
            nearest folder above it that has one.
        environment: variables; `MLX_<TABLE>_<KEY>`, e.g. `MLX_SERVING_PORT=8080`, and `MLX_REGISTRY`,
            `MLFLOW_REGISTRY_URI`, `MLFLOW_TRACKING_URI` for the registry's URI.
        overrides: values from flags by dotted key, e.g. `{"registry.uri": "..."}`; None values are ignored.
        start: the folder to look from, by default the working directory.

    Raises:
        NotFoundError: a file that was named does not exist.
        UsageError: the file is no TOML, too large, or holds a key or value that is not known.
    """
    environment = os.environ if environment is None else environment
    start = start or Path.cwd()
    if config is None and environment.get("MLX_CONFIG"):
        config = Path(environment["MLX_CONFIG"])
    path = config or _nearest(start)
    values: dict[str, Any] = _read(path) if path else {}
    in_file = values.get("registry")
    named_in_file = isinstance(in_file, dict) and "uri" in in_file
    flags = {key: value for key, value in (overrides or {}).items() if value is not None}
    _lay_over(values, _from_environment(environment, named_in_file=named_in_file), source="the environment")
    _lay_over(values, flags, source="the command line")
    _complete_promotion(values)
    settings = read_table(Settings, values, source=str(path) if path else FILE_NAME)
    return replace(settings, folder=(path.parent if path else start).resolve(), source=path)


def _nearest(start: Path) -> Path | None:
    for folder in (start, *start.resolve().parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_CAP + 1)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"The settings file {path} does not exist.", hint="Write one with: mlx init"
        ) from error
    except OSError as error:
        raise UsageError(f"Cannot read the settings file {path}: {error.strerror}.") from error
    if len(content) > FILE_CAP:
        raise UsageError(f"The settings file {path} is larger than {FILE_CAP // 1024} KiB.")
    import tomllib  # only where there is a file to read

    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}.") from error
    if _depth(values) > _DEPTH_CAP:
        raise UsageError(f"{path} is nested deeper than {_DEPTH_CAP} levels.")
    return values


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((_depth(inner) for inner in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(inner) for inner in value), default=0)
    return 0


def _from_environment(environment: Mapping[str, str], *, named_in_file: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for variable in _REGISTRY_VARIABLES:
        # MLflow's own variables are a default for whoever already uses MLflow; the file is more specific.
        if environment.get(variable) and (variable == "MLX_REGISTRY" or not named_in_file):
            found["registry.uri"] = environment[variable]
            break
    if environment.get("MLX_ACTOR"):
        found["actor"] = environment["MLX_ACTOR"]
    # A list of sinks is no variable's value, and MLX_EVENTS_SECRET is a good name for a sink's secret.
    tables = {entry.name: entry.type for entry in fields(Settings) if is_dataclass(entry.type)}
    del tables["events"]
    for variable, value in environment.items():
        if not variable.startswith("MLX_") or variable in _RESERVED_VARIABLES or not value:
            continue
        table, _, key = variable.removeprefix("MLX_").lower().partition("_")
        if table in tables and key:
            found[f"{table}.{_within(tables[table], key)}"] = value
    return found


def _within(table: Any, key: str) -> str:
    """The key as the file writes it: `cache_backend` is `backend` in the table `cache` of this one."""
    for entry in fields(table):
        if is_dataclass(entry.type) and key.startswith(f"{entry.name}_"):
            return f"{entry.name}.{key.removeprefix(f'{entry.name}_')}"
    return key


def _lay_over(values: dict[str, Any], layer: Mapping[str, Any], *, source: str) -> None:
    alone: dict[str, Any] = {}
    for key, value in layer.items():
        _put(alone, key, value, source=source)
        _put(values, key, value, source=source)
    read_table(Settings, alone, source=source)  # so that a wrong value is blamed on where it was set


def _put(values: dict[str, Any], dotted: str, value: Any, *, source: str) -> None:
    *tables, key = dotted.split(".")
    target = values
    for table in tables:
        target = target.setdefault(table, {})
        if not isinstance(target, dict):
            raise UsageError(f"{table!r} is no table, so {source} cannot set {dotted!r}.")
    target[key] = value


def _complete_promotion(values: dict[str, Any]) -> None:
    # Naming one alias, or one key of it, must not take the default policy away from the rest.
    promotion = values.get("promotion")
    if isinstance(promotion, dict):
        for alias, needs in _DEFAULT_NEEDS.items():
            policy = promotion.setdefault(alias, {})
            if isinstance(policy, dict):
                policy.setdefault("needs", needs)
