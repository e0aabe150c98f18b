"""Looks at a gate set, counted with the versions of a model."""

from mlx_platform.evaluation.gates import digest_of
from mlx_platform.evaluation.looks import Looks, count_looks, key_of, tag_of
from mlx_platform.workflows.context import Context
from mlx_platform.workflows.evaluation.findings import Findings

_MOST_VERSIONS = 500  # the newest are asked how often they were looked at


def looks_at(context: Context, findings: Findings) -> Looks | None:
    """Count this look; None for what has no gates, or no registered version to write it down at."""
    version = findings.subject.version
    if version is None or not findings.asked.gates:
        return None
    against = findings.baseline.digest if findings.baseline else ""
    key = key_of(findings.rows.dataset.fingerprint, digest_of(findings.asked), against)
    others = (
        other.tags
        for other in context.catalog.versions(version.name, limit=_MOST_VERSIONS)
        if other.number != version.number
    )
    return count_looks(key, version.tags, others)


def note_look(context: Context, findings: Findings) -> None:
    """Write this look down at the version."""
    version, looks = findings.subject.version, findings.looks
    if version is not None and looks is not None:
        context.catalog.set_tags(version, tag_of(looks, context.clock()))
