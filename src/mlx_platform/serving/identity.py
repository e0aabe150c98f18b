"""Who answered, as the answers of each protocol say it."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from mlx_platform.inference.model import Model
from mlx_platform.serving.http_exchange import Header, header_lines

_PLAIN = " !#$&'()*+,/:;=?@[]~"  # stands for itself in a header


@dataclass(frozen=True, slots=True)
class Identity:
    """A version, and what it is instead of.

    `arm` is the share of traffic that it gets. `degraded` is "" for the version on the device that was asked
    for, else the device that took over, "fallback" for another version, "rule" for a fixed answer. `head`
    begins a document of the protocol, `answered_by` one of `/predict`; `headers` say the same beside an
    answer, and `lines` are these as they stand in HTTP.
    """

    model: Model
    arm: str
    degraded: str
    head: Mapping[str, object]
    answered_by: Mapping[str, object]
    headers: tuple[Header, ...]
    lines: bytes

    @classmethod
    def of(cls, model: Model, arm: str, degraded: str = "") -> "Identity":
        """The identity of a version under which it answers."""
        head: dict[str, object] = {"model_name": model.name, "model_version": model.version}
        answered_by = {"model": model.name, "version": model.version, "digest": model.digest, "arm": arm}
        headers = [
            (b"x-mlx-model", quote(model.name, safe=_PLAIN).encode()),
            (b"x-mlx-version", quote(model.version).encode()),
            (b"x-mlx-digest", model.digest.encode()),
            (b"x-mlx-arm", arm.encode()),
        ]
        if degraded:
            head["parameters"] = {"degraded": degraded}
            answered_by["degraded"] = degraded
            headers.append((b"x-mlx-degraded", degraded.encode()))
        return cls(model, arm, degraded, head, answered_by, tuple(headers), header_lines(headers))
