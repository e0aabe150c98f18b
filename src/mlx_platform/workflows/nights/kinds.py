"""Kinds of mismatches with their history: when each was first seen, and what had just been deployed then."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from mlx_platform.core.clock import both_zones, rfc3339
from mlx_platform.core.values import frozen
from mlx_platform.workflows.nights.deploys import begins_with
from mlx_platform.workflows.nights.kept import KeptNight
from mlx_platform.workflows.nights.look import Seen
from mlx_platform.workflows.nights.watch import Cluster


@frozen
class Kind:
    """A cluster of mismatches with its history: when its kind was first seen in any night that is kept."""

    ref: str
    cluster: Cluster
    first: datetime
    deploy: str
    before_night: str

    @property
    def since(self) -> str:
        if self.before_night:
            return f"seen since {both_zones(self.first)}"
        return self.deploy or "no deploy within the hour before"

    def document(self) -> dict[str, Any]:
        return {
            "version": self.ref,
            **self.cluster.document(),
            "first_seen_ever": rfc3339(self.first),
            "first_night": self.before_night or None,
            "begins_with": self.deploy or None,
        }


def kinds_of(seen: Seen, before: Sequence[KeptNight]) -> list[Kind]:
    """The clusters of all versions, most requests first."""
    found = [
        _kind(look.ref, cluster, cluster.first, seen, before)
        for look in seen.looks
        for cluster in look.watch.clusters.values()
        if cluster.first is not None
    ]
    return sorted(found, key=lambda kind: (-kind.cluster.requests, kind.cluster.key))


def _kind(ref: str, cluster: Cluster, first: datetime, seen: Seen, before: Sequence[KeptNight]) -> Kind:
    known = [
        (night.clusters[key], night.key)
        for night in before
        if (key := f"{ref}|{cluster.key}") in night.clusters
    ]
    if known:
        earlier, night = min(known)
        return Kind(ref, cluster, min(earlier, first), "", night)
    deploy = begins_with(first, seen.deploys)
    return Kind(ref, cluster, first, f"{deploy[1]} after: {deploy[0].text}" if deploy else "", "")
