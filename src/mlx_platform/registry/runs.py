"""What a run of MLflow knows about the model that came out of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import listed
from mlx_platform.registry.version import DATASET_FINGERPRINT, QUANTIZED, Lineage, Version, check_lineage

CONTEXT_TAG = "mlflow.data.context"
DATA_CONTEXT, DATA_SOURCE = "evaluation", "local"
"""The tag of a run's dataset that says what it was for."""
_GIT_COMMIT = "mlflow.source.git.commit"
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_RESERVED = ("mlx.", "mlflow.")
_TAGS_CAP = 100
_TAG_CAP = 5000  # characters; some databases take no longer tag
_TRAINING = {"train", "training"}


@dataclass(frozen=True, slots=True)
class MetricData:
    """The rows that metrics are about, as MLflow shows them beside the numbers."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the registry tells it: untrusted text.

    Attributes:
        artifact_uri: where its files are said to be.
        datasets: name, digest and context of its inputs.
        models: ids of the MLflow models that it logged.
    """

    id: str
    artifact_uri: str
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    datasets: tuple[tuple[str, str, str], ...] = ()
    models: tuple[str, ...] = ()


def lineage_of(run: RunRecord | None, version: Version | None) -> tuple[Lineage, tuple[str, ...]]:
    """What of a run, and of the version that somebody made of it, is kept with the version made of that.

    Returns:
        A lineage that can be registered, and sentences about what could not be kept.
    """
    sealed = version if version and version.sealed else None
    params = {**(run.params if run else {}), **(sealed.params if sealed else {})}
    metrics = {**(run.metrics if run else {}), **(sealed.metrics if sealed else {})}
    tags = _own_tags({**(run.tags if run else {}), **(version.tags if version else {})})
    if sealed and sealed.quantized:
        tags[QUANTIZED] = sealed.tags[QUANTIZED]  # it needs the same evidence as the one it was copied from
    commit = run.tags.get(_GIT_COMMIT, "").lower() if run else ""
    description = version.description if version else ""
    kept = Lineage(
        dataset_version=sealed.dataset_version if sealed else dataset_text(run),
        git_commit=sealed.git_commit if sealed else commit if _COMMIT.fullmatch(commit) else "",
        dataset_fingerprint=sealed.tags.get(DATASET_FINGERPRINT, "") if sealed else "",
        params={key: text for key, text in params.items() if _fits(Lineage(params={key: text}))},
        metrics={key: value for key, value in metrics.items() if _fits(Lineage(metrics={key: value}))},
        description=description if _fits(Lineage(description=description)) else "",
        parent=sealed.parent if sealed else "",
        tags=tags,
    )
    lost = [*params.keys() - kept.params.keys(), *metrics.keys() - kept.metrics.keys()]
    warnings = [f"Its run has values that no version can keep: {listed(sorted(lost), 5)}."] if lost else []
    if not _fits(kept):
        kept = replace(kept, params={}, metrics={}, tags={})
        warnings.append("Its parameters, metrics and tags are too large to be kept with a version.")
    return kept, tuple(warnings)


def dataset_text(run: RunRecord | None) -> str:
    """The training data of a run in a few words: `NAME (DIGEST)`; the inputs for training if some are."""
    inputs = run.datasets if run else ()
    training = [found for found in inputs if found[2].lower() in _TRAINING] or list(inputs)
    words = [f"{name} ({digest})" if digest else name for name, digest, _ in training]
    return listed(list(dict.fromkeys(words)), 5, width=200)


def _own_tags(tags: Mapping[str, str]) -> dict[str, str]:
    # What MLflow or mlx wrote belongs to the version they wrote it to.
    own = {
        key: text
        for key, text in tags.items()
        if not key.startswith(_RESERVED) and _fits(Lineage(params={key: ""})) and len(text) <= _TAG_CAP
    }
    return dict(sorted(own.items())[:_TAGS_CAP])


def _fits(lineage: Lineage) -> bool:
    try:
        check_lineage(lineage)
    except UsageError:
        return False
    return True
