"""Where a request stands in a distributed trace, and what its stages look like from outside.

The header is W3C Trace Context (Recommendation, level 1): https://www.w3.org/TR/trace-context/
"""

import random
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The span of one request: its trace and itself in hexadecimal, the span that it belongs to or nothing.

    `sampled` says whether it is recorded; that is decided once, by whoever began the trace.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    sampled: bool = True

    @property
    def header(self) -> bytes:
        """What those who are told of this span are sent."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}".encode()


def join_trace(header: bytes | None) -> Trace | None:
    """A span in the trace that a `traceparent` header names; None without one, or when it is no valid one."""
    match = _TRACEPARENT.fullmatch(header) if header is not None else None
    if match is None:
        return None
    version, trace_id, parent_id, flags, rest = match.groups()
    # Later versions may have more parts; what is there today stays as it is.
    if version == b"ff" or (rest and version == b"00") or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    sampled = bool(int(flags, 16) & _SAMPLED)
    return Trace(trace_id.decode(), secrets.token_hex(8), parent_id.decode(), sampled)


def begin_trace(share: float) -> Trace | None:
    """A trace that starts here, for a share of the requests."""
    if share <= 0 or random.random() >= share:  # noqa: S311 - a sample, no secret
        return None
    return Trace(secrets.token_hex(16), secrets.token_hex(8))


def server_timing(seconds: Mapping[str, float], steps: Mapping[str, float], total: float) -> bytes:
    """Stages, and the steps within `pre`, as the header `Server-Timing`, in milliseconds.

    See https://www.w3.org/TR/server-timing/ .
    """
    named = {**seconds, **{f"pre-{kind}": spent for kind, spent in steps.items()}}
    parts = [f"{name};dur={spent * 1000:.3f}" for name, spent in named.items()]
    return ", ".join((*parts, f"total;dur={total * 1000:.3f}")).encode()
