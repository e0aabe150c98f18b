"""Counts that were kept in a file, as the traffic to compare."""

from pathlib import Path
from typing import Any, cast

import orjson

from mlx_platform.core.errors import UsageError
from mlx_platform.core.span import Span
from mlx_platform.drift.feature import Role
from mlx_platform.drift.profile import Profile
from mlx_platform.drift.shard import Place, Shard, is_counts
from mlx_platform.drift.strata import Strata
from mlx_platform.traffic.log import LogStats
from mlx_platform.workflows.drifting.window import Cut, Window

_HEAD = 4096
_AGAIN = "Count the log again for it: mlx profile count ..."


def read_shard(path: Path) -> Shard:
    """The counts in a file.

    Raises:
        UsageError: the file cannot be read, or holds none.
    """
    document = _document(path)
    if not is_counts(document):
        raise UsageError(f"{path} holds no counts.", hint="Make some: mlx profile count LOG --on REF -o FILE")
    return Shard.from_document(document)


def kept_window(path: Path, profile: Profile, cut: Cut) -> Window | None:
    """Kept counts, cut as asked for; None for every other file and folder.

    Raises:
        UsageError: the counts are of another baseline, or were made without what they are to be cut by.
    """
    if path.suffix.lower() != ".json" or not path.is_file() or b'"mlx.counts/' not in _tail(path):
        return None
    shard = read_shard(path)
    if shard.baseline_id != profile.baseline_id:
        raise UsageError(
            f"{path} was counted on the bins of baseline {shard.baseline_id}, not {profile.baseline_id}.",
            hint="Name that baseline, or count the log again on this one: mlx profile count LOG --on ...",
        )
    if cut.entity is not None:
        raise UsageError("Kept counts do not tell servers apart.", hint=_AGAIN)
    parts: dict[Place, Strata] = {}
    for place, strata in shard.parts.items():
        for counts in strata.shares.values():
            counts.check(profile)
        if (span := _cut_span(path, place, cut)) is None or cut.arm not in (None, place.arm):
            continue
        own = Place(span, place.arm, place.version)
        parts[own] = parts[own] + strata if own in parts else strata
    stats = LogStats(format="counts")
    roles = cast("tuple[Role, ...]", shard.roles)
    return Window(str(path), cut, profile, parts, stats, roles=roles, first=shard.first, last=shard.last)


def _cut_span(path: Path, place: Place, cut: Cut) -> Span | None:
    """The window that a part belongs to; None when it lies outside of what is asked for."""
    span, wanted = place.span, cut.span
    if (span.until and wanted.since and span.until <= wanted.since) or (
        span.since and wanted.until and span.since >= wanted.until
    ):
        return None
    if (wanted.since and (span.since is None or span.since < wanted.since)) or (
        wanted.until and (span.until is None or span.until > wanted.until)
    ):
        raise UsageError(f"{path} holds counts of {_text(span)}, which cannot be cut.", hint=_AGAIN)
    if cut.grid is None:
        return span
    if span.since is None or span.until is None:
        raise UsageError(f"{path} was counted without windows.", hint=f"{_AGAIN} --every 1h")
    window = cut.grid.at(span.since)
    if window.until is None or span.until > window.until:
        raise UsageError(f"{path} holds counts of {_text(span)}, longer than a window.", hint=_AGAIN)
    return window


def _text(span: Span) -> str:
    ends = span.document()
    return f"{ends['since'] or 'the beginning'} to {ends['until'] or 'the end'}"


def _tail(path: Path) -> bytes:
    """The end of a file, where canonical counts name their schema."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _HEAD))
        return file.read()


def _document(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"There are no counts {path}.") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error
