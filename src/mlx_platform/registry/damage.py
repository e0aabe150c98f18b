"""Tags of a version that are not as mlx wrote them: somebody changed them, or took them away."""

import json
from collections.abc import Iterator

from mlx_platform.core.text import printable
from mlx_platform.core.values import frozen
from mlx_platform.registry.version import (
    DIGEST,
    EVIDENCE_PREFIX,
    LABEL,
    METRICS,
    PARAMS,
    SIZE,
    Version,
)

_LOST = {
    PARAMS: "parameters are not known",
    METRICS: "training metrics are not known",
    SIZE: "size is not known",
}


@frozen
class Damage:
    """One tag: what is wrong with it as a sentence, and what it says, safe to print."""

    tag: str
    sentence: str
    text: str


def damage_of(version: Version) -> tuple[Damage, ...]:
    """Everything that is wrong with a version's tags; nothing is said of what plain MLflow registered."""
    return tuple(
        Damage(tag, f"{version.ref}: {what}.", printable(version.tags.get(tag, "none"), 80))
        for tag, what in _found(version)
    )


def told_damage(version: Version) -> tuple[str, ...]:
    """What to say of tags that somebody changed or took away."""
    return tuple(damage.sentence for damage in damage_of(version))


def _found(version: Version) -> Iterator[tuple[str, str]]:
    if version.stripped:
        how = "is none" if DIGEST in version.tags else "was taken away"
        yield DIGEST, f"its digest {how}, although mlx registered it; nothing can be proved about its bytes"
    for tag in version.unreadable:
        yield tag, f"the tag {tag} cannot be read, so its {_LOST[tag]}"
    if not version.sealed:
        return
    for tag, text in version.tags.items():
        if tag.startswith(EVIDENCE_PREFIX) and not _is_object(text):
            yield tag, f"the tag {printable(tag, 80)} cannot be read, so this evidence does not count"
    if version.tags.get(LABEL, version.label) != version.label:
        yield LABEL, f"the tag {LABEL} says {printable(version.tags[LABEL], 80)!r}; it is {version.label}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
