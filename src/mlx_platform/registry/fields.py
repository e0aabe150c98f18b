"""The names under which people ask for what is known about a version: `metrics.f1`, `params.lr`, `created`.

One table serves filtering, sorting and printing, so a name means the same thing everywhere.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from mlx_platform.core.errors import UsageError
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.findings import metrics_of
from mlx_platform.registry.version import (
    ACTOR,
    ARCHIVED,
    DATASET,
    DATASET_FINGERPRINT,
    DIGEST,
    EVIDENCE_PREFIX,
    GIT_COMMIT,
    METRICS,
    PARAMS,
    PARENT,
    QUANTIZED,
    QUARANTINED,
    SIZE,
    TASK,
    EvidenceSummary,
    Version,
    evidence_of,
)

Kind = Literal["number", "text", "any", "time", "flag", "set"]
"""How a field compares; `any` is text that is a number where it reads as one."""
Value = float | str | bool | datetime | tuple[str, ...]

EVIDENCE_KINDS = ("evaluation", "quantization", "consistency", "online", "drift", "shadow", "rollout")
"""Kinds whose numbers need no `evidence.` in front: `evaluation.accuracy`."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
OF_ALIASES = {"alias", "aliases", "rolled_back", "state", "candidate"}
_KEYED: Mapping[str, Kind] = {"metrics": "number", "params": "any", "tags": "any"}
_MOST_SUGGESTED_FROM = 200  # versions whose names are looked through for a misspelt one


@frozen
class Field:
    """A name that was understood: `root`, and behind the first dot `key` where the root takes one."""

    text: str
    root: str
    key: str
    kind: Kind


class Known:
    """What is known about a version, by field; the evidence is read only when it is asked for."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def value(self, field: Field) -> Value | None:
        """The field's value; None where the version has none."""
        version, key = self.version, field.key
        match field.root:
            case "metrics":
                return version.metrics.get(key)
            case "params":
                return version.params.get(key)
            case "tags":
                return version.tags.get(key)
            case "evidence":
                return self._found(*_split(key))
            case root if root in EVIDENCE_KINDS:
                return self._found(root, key)
            case root:
                value = _PLAIN[root].read(version)
                return None if value == "" or self.doubtful(field) else value

    def doubtful(self, field: Field) -> bool:
        """Whether nobody can tell: who holds the aliases, or what stood in a tag that cannot be read."""
        if of_aliases(field):
            return bool(self.version.doubt)
        return field.root in {"params", "metrics", "size"} and f"mlx.{field.root}" in self.version.unreadable

    def keys(self, root: str) -> tuple[str, ...]:
        """Every key that the version has below a root, as it would be written."""
        version = self.version
        tables: dict[str, Iterable[str]] = {
            "metrics": version.metrics,
            "params": version.params,
            "tags": version.tags,
            "evidence": self._evidence,
        }
        if root in EVIDENCE_KINDS:
            return tuple(self._numbers(root))
        return tuple(tables.get(root, ()))

    @cached_property
    def _evidence(self) -> dict[str, EvidenceSummary]:
        return evidence_of(self.version)

    def _numbers(self, kind: str) -> dict[str, float]:
        found = self._evidence.get(kind)
        return metrics_of(found.numbers) if found else {}

    def _found(self, kind: str, path: str) -> Value | None:
        found = self._evidence.get(kind)
        if found is None:
            return None
        if path in {"", "verdict"}:
            return found.verdict or None
        if path == "created":
            return _moment(found.created)
        return _number_at(found.numbers, path)


def parse_field(text: str) -> Field:
    """Understand a field's name.

    Raises:
        UsageError: no field has this name; the hint names the closest.
    """
    root, dot, key = text.partition(".")
    if not dot and root in _PLAIN:
        return Field(text, root, "", _PLAIN[root].kind)
    if dot and key:
        if root in _KEYED:
            return Field(text, root, key, _KEYED[root])
        if root == "evidence":
            return Field(text, root, key, _evidence_kind(_split(key)[1]))
        if root in EVIDENCE_KINDS:
            return Field(text, root, key, _evidence_kind(key))
    if not dot and (root in _KEYED or root == "evidence" or root in EVIDENCE_KINDS):
        example = "evaluation" if root == "evidence" else "accuracy"
        raise UsageError(f"{root!r} needs a key.", hint=f"Write for example {root}.{example}.")
    raise UsageError(
        f"There is no field {printable(text, 100)!r}.", hint=did_you_mean(text, [*_PLAIN, *_examples(key)])
    )


def plain_fields() -> tuple[str, ...]:
    """The fields that every version has."""
    return tuple(_PLAIN)


def known_fields(version: Version) -> tuple[str, ...]:
    """The fields with a key that this version has: metrics, parameters and verdicts."""
    known = Known(version)
    return tuple(f"{root}.{key}" for root in ("metrics", "params", "evidence") for key in known.keys(root))


def of_aliases(field: Field) -> bool:
    """Whether a field depends on who holds an alias, or held one."""
    return field.root in OF_ALIASES


def tags_of(field: Field) -> tuple[str, ...]:
    """The keys of the tags that hold a field: reading only these is enough to answer for it."""
    match field.root:
        case "metrics":
            return (METRICS,)
        case "params":
            return (PARAMS,)
        case "tags":
            return (field.key,)
        case "evidence":
            return (DIGEST, EVIDENCE_PREFIX + _split(field.key)[0])
        case root if root in EVIDENCE_KINDS:
            return (DIGEST, EVIDENCE_PREFIX + root)
        case root:
            return _PLAIN[root].tags


def suggestion(field: Field, versions: Iterable[Version]) -> str:
    """A hint for a field that none of the versions has: the closest one that some do."""
    known: dict[str, None] = {}
    for version, _ in zip(versions, range(_MOST_SUGGESTED_FROM), strict=False):
        known |= dict.fromkeys(Known(version).keys(field.root))
    return did_you_mean(field.text, [f"{field.root}.{key}" for key in known])


def number_of(text: str) -> float | None:
    """The text as a finite number, when it is written like one."""
    if len(text) > 40 or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) < float("inf") else None


def sort_versions(versions: Iterable[Version], field: Field, *, descending: bool) -> list[Version]:
    """Put versions in the order of a field, in either direction those last that have no value.

    Text is in numeric order when all of it is numbers. Ties stay as they were.
    """
    found = [(Known(version).value(field), version) for version in versions]
    having = [(value, version) for value, version in found if value is not None]
    lacking = [version for value, version in found if value is None]
    keys: list[Any] = [value for value, _ in having]
    numbers = [number_of(str(value)) for value in keys]
    if field.kind == "any" and None not in numbers:
        keys = numbers
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
    return [having[place][1] for place in order] + lacking


def _split(key: str) -> tuple[str, str]:
    kind, _, path = key.partition(".")
    return kind, path


def _evidence_kind(path: str) -> Kind:
    if path in {"", "verdict"}:
        return "text"
    return "time" if path == "created" else "number"


def _examples(key: str) -> list[str]:
    return [f"{root}.{key or 'KEY'}" for root in (*_KEYED, "evidence", *EVIDENCE_KINDS)]


def _number_at(numbers: Mapping[str, Any], path: str) -> float | None:
    """The number at a dotted path, as `metrics_of` names it; keys may have dots of their own."""
    if path in numbers:
        value = numbers[path]
        return _number_at(value, "value") if isinstance(value, Mapping) else _finite(value)
    for place, char in enumerate(path):
        inner = numbers.get(path[:place]) if char == "." else None
        if isinstance(inner, Mapping) and (found := _number_at(inner, path[place + 1 :])) is not None:
            return found
    return None


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


@frozen
class _Plain:
    """A field without a key: how it compares, how it is read, and the tags that reading it needs."""

    kind: Kind
    read: Callable[[Version], Value]
    tags: tuple[str, ...] = ()


_PLAIN: Mapping[str, _Plain] = {
    "name": _Plain("text", lambda version: version.name),
    "version": _Plain("number", lambda version: float(version.number)),
    "label": _Plain("text", lambda version: version.label),
    "digest": _Plain("text", lambda version: version.digest, (DIGEST,)),
    "size": _Plain("number", lambda version: float(version.size) if version.size else "", (SIZE,)),
    "created": _Plain("time", lambda version: version.created),
    "alias": _Plain("set", lambda version: version.aliases),
    "aliases": _Plain("set", lambda version: version.aliases),
    "rolled_back": _Plain("set", lambda version: version.rolled_back),
    "state": _Plain(
        "set",
        lambda version: version.marks or ("candidate", "staging candidate"),
        (ARCHIVED, DIGEST, QUARANTINED),
    ),
    "candidate": _Plain("flag", lambda version: version.candidate, (ARCHIVED, DIGEST, QUARANTINED)),
    "archived": _Plain("flag", lambda version: version.archived, (ARCHIVED,)),
    "quarantined": _Plain("flag", lambda version: bool(version.quarantined), (QUARANTINED,)),
    "quantized": _Plain("flag", lambda version: version.quantized, (QUANTIZED,)),
    "parent": _Plain("text", lambda version: version.parent, (PARENT,)),
    "dataset": _Plain("text", lambda version: version.dataset_version, (DATASET,)),
    "dataset_fingerprint": _Plain(
        "text", lambda version: version.tags.get(DATASET_FINGERPRINT, ""), (DATASET_FINGERPRINT,)
    ),
    "git_commit": _Plain("text", lambda version: version.git_commit, (GIT_COMMIT,)),
    "actor": _Plain("text", lambda version: version.tags.get(ACTOR, ""), (ACTOR,)),
    "task": _Plain("text", lambda version: version.tags.get(TASK, ""), (TASK,)),
    "description": _Plain("text", lambda version: version.description),
    "run_id": _Plain("text", lambda version: version.run_id),
}
FLAGS = frozenset(name for name, field in _PLAIN.items() if field.kind == "flag")
"""Fields that are yes or no; of `quarantined` the document of a version has the reason instead."""
