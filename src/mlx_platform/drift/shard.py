"""Counts of windows of traffic that are kept and added up: shards of a log, hours, replicas."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import orjson

from mlx_platform.core.errors import ConflictError, UsageError
from mlx_platform.core.span import ALWAYS, Span
from mlx_platform.drift.account import Account
from mlx_platform.drift.strata import Strata

SCHEMA = "mlx.counts/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """What a part of the counts is of: a span of time, an arm, a version."""

    span: Span = ALWAYS
    arm: str = ""
    version: str = ""

    def document(self) -> dict[str, Any]:
        ends = {"since": self.span.since, "until": self.span.until}
        return {
            **{name: end.isoformat() if end else None for name, end in ends.items()},
            "arm": self.arm,
            "version": self.version,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        ends = [document["since"], document["until"]]
        span = Span(*(datetime.fromisoformat(end) if end else None for end in ends))
        return cls(span, str(document["arm"]), str(document["version"]))


@dataclass(frozen=True, slots=True)
class Shard:
    """Counts by place on the bins of one baseline, and the account of what they were made of.

    Attributes:
        baseline_id: of the profile.
        roles: which features were counted.
        first: event time of the earliest row, where rows have one.
        last: of the latest.
    """

    baseline_id: str
    parts: Mapping[Place, Strata] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    roles: tuple[str, ...] = ("input", "output")
    first: datetime | None = None
    last: datetime | None = None

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts.values())

    def __add__(self, more: "Shard") -> "Shard":
        self.check_like(more)
        parts = dict(self.parts)
        for place, strata in more.parts.items():
            parts[place] = parts[place] + strata if place in parts else strata
        moments = [each for each in (self.first, more.first) if each]
        ends = [each for each in (self.last, more.last) if each]
        return Shard(
            baseline_id=self.baseline_id,
            parts=parts,
            account=self.account + more.account,
            roles=self.roles,
            first=min(moments, default=None),
            last=max(ends, default=None),
        )

    def check_like(self, more: "Shard") -> None:
        """Refuse counts of something else.

        Raises:
            UsageError: they are on the bins of another baseline, or of other features.
        """
        if more.baseline_id != self.baseline_id:
            raise UsageError(
                f"Counts on the bins of baseline {more.baseline_id} cannot be added to those of "
                f"{self.baseline_id}.",
                hint="Count both on the same baseline: mlx profile count ... --baseline FILE.",
            )
        if more.roles != self.roles:
            raise UsageError("Counts of inputs alone cannot be added to those of inputs and outputs.")

    def to_json(self) -> bytes:
        """The canonical bytes: equal shards give equal bytes."""
        ordered = sorted(self.parts.items(), key=lambda entry: str(entry[0]))
        return orjson.dumps(
            {
                "schema": SCHEMA,
                "baseline_id": self.baseline_id,
                "roles": list(self.roles),
                "first": self.first.isoformat() if self.first else None,
                "last": self.last.isoformat() if self.last else None,
                "parts": [{**place.document(), "shares": part.document()} for place, part in ordered],
                "account": self.account.document(),
            },
            option=orjson.OPT_SORT_KEYS,
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote.

        Raises:
            UsageError: these are no counts, or of a schema this version does not know.
        """
        try:
            if document["schema"] != SCHEMA:
                raise UsageError(f"These are counts of the schema {document['schema']!r}, not {SCHEMA!r}.")
            baseline_id = str(document["baseline_id"])
            ends = [document["first"], document["last"]]
            first, last = (datetime.fromisoformat(end) if end else None for end in ends)
            return cls(
                baseline_id=baseline_id,
                parts={
                    Place.from_document(entry): Strata.from_document(baseline_id, entry["shares"])
                    for entry in document["parts"]
                },
                account=Account.from_document(document["account"]),
                roles=tuple(map(str, document["roles"])),
                first=first,
                last=last,
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UsageError(f"These counts cannot be read: {error!r}.") from error


def is_counts(document: Any) -> bool:
    """Whether a JSON document claims to be such counts."""
    return isinstance(document, Mapping) and str(document.get("schema", "")).startswith("mlx.counts/")


def merge(shards: Iterable[tuple[str, Shard]]) -> tuple[Shard, tuple[str, ...]]:
    """Add shards up; one whose rows have all been counted is passed over.

    Args:
        shards: at least one, each with its name.

    Returns:
        The sum, and the names of those that were passed over.

    Raises:
        UsageError: shards on different baselines.
        ConflictError: some of a shard's rows have been counted and some have not: they cannot be told apart.
    """
    rest = iter(shards)
    _, whole = next(rest)
    repeated = []
    for name, shard in rest:
        whole.check_like(shard)
        overlap = whole.account.holds(shard.account)
        if overlap == "some":
            raise ConflictError(
                f"A part of {name} has been counted already: {whole.account.shared(shard.account)}.",
                hint="Count the whole span again in one go, or leave this file out.",
            )
        if overlap == "all":
            repeated.append(name)
        else:
            whole = whole + shard
    return whole, tuple(repeated)
