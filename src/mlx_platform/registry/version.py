"""What the registry says about a version, and the tags in which it is written down.

A version is created together with all of its tags, so whoever sees it sees it whole. The tags are the record:
one read brings them for many versions at once, on every kind of registry. Parameters and metrics are logged
to the MLflow run and model as well, where people look for them.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

from mlx_platform.core.clock import rfc3339
from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.ref import is_alias, is_name
from mlx_platform.registry.row import Row, created_at

DIGEST = "mlx.digest"
CONTENT = "mlx.content"
SIZE = "mlx.size"
LABEL = "mlx.label"
PARENT = "mlx.parent"
DATASET = "mlx.dataset"
DATASET_FINGERPRINT = "mlx.dataset_fingerprint"
GIT_COMMIT = "mlx.git_commit"
PARAMS = "mlx.params"
METRICS = "mlx.metrics"
ARCHIVED = "mlx.archived"
QUARANTINED = "mlx.quarantined"
QUANTIZED = "mlx.quantized"
ACTOR = "mlx.actor"
TASK = "mlx.task"
INPUTS = "mlx.inputs"
OUTPUTS = "mlx.outputs"
ENVIRONMENT = "mlx.environment"
EVIDENCE_PREFIX = "mlx.evidence."
ADOPTED_FROM = "mlx.adopted_from"
"""The version of plain MLflow that a sealed one was made of."""
ADOPTED_HELD = "mlx.adopted_held"
"""The aliases and the stage that it held at that time."""
REGISTERED_FROM = "mlx.registered_from"
"""The `models:/` or `runs:/` URI that a version was registered from."""
PROMPT = "mlflow.prompt.is_prompt"
"""MLflow keeps prompts in the tables of the models; what carries this tag is no model."""

UNKNOWN_TIME = datetime(1970, 1, 1, tzinfo=UTC)
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
ROLLED_BACK = "rolled-back"
NOT_SEALED = "not sealed"
UNKNOWN = "unknown"
_SIZE = re.compile(r"[1-9][0-9]{0,17}")
_KEY_PATTERN = re.compile(r"[A-Za-z0-9_./ -]{1,250}")
_PARAM_CAP = 6000
_TAG_CAP = 100_000
_DESCRIPTION_CAP = 5000
_GATES_CAP = 200
_MODEL_ID = re.compile(r"models:/(m-[0-9a-f]{32})")
_STAGES = {"Staging", "Production", "Archived"}


@frozen
class Lineage:
    """Where a version comes from. `tags` are further tags that must be there from the first moment on."""

    dataset_version: str = ""
    dataset_fingerprint: str = ""
    git_commit: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    parent: str = ""
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def as_tags(self) -> dict[str, str]:
        """The tags that keep it; what is empty has none."""
        found = {
            DATASET: self.dataset_version,
            DATASET_FINGERPRINT: self.dataset_fingerprint,
            GIT_COMMIT: self.git_commit,
            PARENT: self.parent,
            PARAMS: json.dumps(dict(self.params), sort_keys=True) if self.params else "",
            METRICS: json.dumps({key: float(value) for key, value in self.metrics.items()}, sort_keys=True)
            if self.metrics
            else "",
        }
        return {key: value for key, value in found.items() if value} | dict(self.tags)


@frozen
class Version:
    """A registered version.

    `digest` is empty for a version that was not registered by mlx, `size` counts the package's bytes,
    `parent` is the version it was made from (`digits/2`) or empty, and `quarantined` holds the reason or is
    empty.
    """

    name: str
    number: int
    digest: str
    content_digest: str
    label: str
    created: datetime
    aliases: tuple[str, ...]
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    source: str
    run_id: str
    size: int
    parent: str
    description: str
    archived: bool
    quarantined: str
    stage: str = ""
    """The stage that MLflow's own registry gave it, empty for none."""
    rolled_back: tuple[str, ...] = ()
    """The aliases that were rolled back from it and that it did not get back since."""
    doubt: str = ""
    """Why nobody can tell which aliases it holds and lost; empty where somebody can."""
    unreadable: tuple[str, ...] = ()
    """Tags that should hold its parameters, metrics or size, and do not."""

    @property
    def ref(self) -> str:
        return f"{self.name}/{self.number}"

    @property
    def sealed(self) -> bool:
        """Whether it is a package of ours; what plain MLflow registered is not."""
        return bool(self.digest)

    @property
    def stripped(self) -> bool:
        """Whether mlx registered it, and somebody changed its digest or took it away since."""
        return not self.digest and bool({DIGEST, CONTENT, SIZE} & self.tags.keys())

    @property
    def candidate(self) -> bool:
        """Whether it waits to be promoted: sealed, and nothing else can be said of where it stands."""
        return not self.marks

    @property
    def state(self) -> str:
        """One phrase for people: `production, staging`, `staging candidate`, `quarantined`, `archived`."""
        lost, stage = f"rolled back from {', '.join(self.rolled_back)}", f"MLflow stage {self.stage}"
        words = [lost if mark == ROLLED_BACK else mark for mark in self.marks]
        if not self.sealed and self.stage:
            words.insert(words.index(NOT_SEALED), stage)
        return ", ".join(words) or "staging candidate"

    @property
    def marks(self) -> tuple[str, ...]:
        """Everything that keeps it from being a candidate: its aliases first, then what befell it."""
        befell = {
            UNKNOWN: self.doubt,
            ROLLED_BACK: self.rolled_back,
            "quarantined": self.quarantined,
            "archived": self.archived,
            NOT_SEALED: not self.sealed,
        }
        return (*self.aliases, *(mark for mark, found in befell.items() if found))

    @property
    def dataset_version(self) -> str:
        return self.tags.get(DATASET, "")

    @property
    def git_commit(self) -> str:
        return self.tags.get(GIT_COMMIT, "")

    @property
    def quantized(self) -> bool:
        return bool(self.tags.get(QUANTIZED))

    def document(self) -> dict[str, Any]:
        """Everything about the version, JSON-ready; what nobody can tell is null."""
        known = not self.doubt
        return {
            "ref": self.ref,
            "name": self.name,
            "version": self.number,
            "label": self.label,
            "state": self.state,
            "aliases": list(self.aliases) if known else None,
            "candidate": self.candidate if known else None,
            "rolled_back": list(self.rolled_back) if known else None,
            "sealed": self.sealed,
            "stage": self.stage,
            "archived": self.archived,
            "quarantined": self.quarantined,
            "digest": self.digest,
            "content_digest": self.content_digest,
            "size": self._readable(SIZE, self.size),
            "created_at": rfc3339(self.created),
            "parent": self.parent,
            "quantized": self.quantized,
            "dataset_version": self.dataset_version,
            "dataset_fingerprint": self.tags.get(DATASET_FINGERPRINT, ""),
            "git_commit": self.git_commit,
            "params": self._readable(PARAMS, dict(self.params)),
            "metrics": self._readable(METRICS, dict(self.metrics)),
            "description": self.description,
            "run_id": self.run_id,
            "source": self.source,
        }

    def _readable(self, tag: str, value: Any) -> Any:
        return None if tag in self.unreadable else value


@frozen
class ModelSummary:
    """A model with its number of versions, its newest version, and who holds its aliases.

    `problem` says why the holders are not known, and is empty when they are.
    """

    name: str
    versions: int
    newest: Version
    aliases: Mapping[str, int]
    problem: str = ""


@frozen
class EvidenceSummary:
    """What a tag keeps of an evidence document; the whole of it is an artifact of its MLflow run.

    `gates` are the questions with their answers, `judged` says by which rules and against which baseline they
    were answered; both are empty for evidence that an earlier version of mlx wrote, and untrusted.
    """

    kind: str
    id: str
    digest: str
    verdict: str
    created: str
    data_fingerprint: str
    run_id: str
    numbers: Mapping[str, Any]
    gates: tuple[Mapping[str, Any], ...] = ()
    judged: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "id": self.id,
            "digest": self.digest,
            "verdict": self.verdict,
            "created": self.created,
            "data_fingerprint": self.data_fingerprint,
            "run_id": self.run_id,
            "numbers": dict(self.numbers),
            "gates": [dict(gate) for gate in self.gates],
            "judged": dict(self.judged),
        }


def check_lineage(lineage: Lineage) -> None:
    """Refuse what MLflow could not keep, before anything is written.

    Raises:
        UsageError: names the parameter or metric.
    """
    for key in (*lineage.params, *lineage.metrics):
        if not _KEY_PATTERN.fullmatch(key) or any(part in {"", ".", ".."} for part in key.split("/")):
            raise UsageError(
                f"{printable(key, 80)!r} cannot name a parameter or a metric.",
                hint="Use 1 to 250 letters, digits, and _ - . / or spaces.",
            )
    for key, text in lineage.params.items():
        if len(text) > _PARAM_CAP:
            raise UsageError(f"The parameter {key!r} has more than {_PARAM_CAP:,} characters.")
    for key, value in lineage.metrics.items():
        if not math.isfinite(value):
            raise UsageError(f"The metric {key!r} is {value}, and must be a finite number.")
    for key, text in lineage.as_tags().items():
        if len(text) > _TAG_CAP:
            raise UsageError(f"{key.removeprefix('mlx.')} has more than {_TAG_CAP:,} characters together.")
    if len(lineage.description) > _DESCRIPTION_CAP:
        raise UsageError(f"The description has more than {_DESCRIPTION_CAP:,} characters.")


def label_of(name: str, number: int, created: datetime) -> str:
    """The label people read: name, day of registration (UTC), number."""
    return f"{name}-{created.astimezone(UTC):%Y%m%d}-{number:03d}"


def version_of(
    row: Row, aliases: Mapping[str, int], rolled_back: tuple[str, ...] = (), doubt: str = ""
) -> Version | None:
    """Turn a row into a version; None for what is none (names that no model of ours has, prompts).

    A number or a time that no registry writes hides nothing: such a version is there, dated 1970.
    """
    if not is_name(row.name) or row.tags.get(PROMPT, "").lower() == "true":
        return None
    created = created_at(row) or UNKNOWN_TIME
    held = tuple(sorted(alias for alias, number in aliases.items() if number == row.number))
    size = row.tags.get(SIZE, "")
    params, metrics = _table(row.tags.get(PARAMS, "")), _table(row.tags.get(METRICS, ""))
    numbers = _numbers(metrics or {})
    unreadable = {
        PARAMS: params is None,
        METRICS: metrics is None or len(numbers) < len(metrics),
        SIZE: SIZE in row.tags and not _SIZE.fullmatch(size),
    }
    return Version(
        name=row.name,
        number=row.number,
        digest=_digest(row.tags.get(DIGEST, "")),
        content_digest=_digest(row.tags.get(CONTENT, "")),
        label=label_of(row.name, row.number, created),
        created=created,
        aliases=tuple(alias for alias in held if is_alias(alias)),
        tags=dict(row.tags),
        params={key: str(value) for key, value in (params or {}).items()},
        metrics=numbers,
        source=row.source,
        run_id=row.run_id,
        size=int(size) if _SIZE.fullmatch(size) else 0,
        parent=row.tags.get(PARENT, ""),
        description=row.description,
        archived=row.tags.get(ARCHIVED, "").lower() == "true",
        quarantined=row.tags.get(QUARANTINED, ""),
        stage=row.stage if row.stage in _STAGES else "",
        rolled_back=rolled_back,
        doubt=doubt,
        unreadable=tuple(tag for tag, damaged in unreadable.items() if damaged),
    )


def evidence_of(version: Version) -> dict[str, EvidenceSummary]:
    """The version's evidence by kind; what was found about another digest does not count."""
    found = {}
    for key, text in version.tags.items():
        if not key.startswith(EVIDENCE_PREFIX):
            continue
        kind, content = key.removeprefix(EVIDENCE_PREFIX), _table(text) or {}
        summary = EvidenceSummary(
            kind=kind,
            id=str(content.get("id", "")),
            digest=str(content.get("digest", "")),
            verdict=str(content.get("verdict", "")),
            created=str(content.get("created", "")),
            data_fingerprint=str(content.get("data_fingerprint", "")),
            run_id=str(content.get("run_id", "")),
            numbers=_inner(content, "numbers"),
            gates=_gates(content.get("gates", _inner(content, "numbers").get("gates"))),
            judged=_inner(content, "judged"),
        )
        if version.digest and summary.digest == version.digest:
            found[kind] = summary
    return dict(sorted(found.items()))


def _inner(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _gates(value: Any) -> tuple[Mapping[str, Any], ...]:
    found = value if isinstance(value, list) else []
    return tuple(gate for gate in found[:_GATES_CAP] if isinstance(gate, dict))


def model_id_of(source: str) -> str:
    """The id of the MLflow model behind a version, from its source `models:/m-...`, or empty."""
    match = _MODEL_ID.fullmatch(source)
    return match[1] if match else ""


def _digest(text: str) -> str:
    return text if DIGEST_PATTERN.fullmatch(text) else ""


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    # An integer of a thousand digits is a number to JSON, and an error to float().
    return {
        key: float(value)
        for key, value in values.items()
        if (isinstance(value, float) and math.isfinite(value))
        or (isinstance(value, int) and abs(value) < 1 << 53)
    }


def _table(text: str) -> dict[str, Any] | None:
    """What a tag holds; None when it cannot be read."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
