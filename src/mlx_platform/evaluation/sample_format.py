"""A sampled row as it is written for those who label it, and read back with its label."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import orjson

from mlx_platform.core.errors import NotFoundError, UsageError
from mlx_platform.core.text import printable

SCHEMA = "mlx.sample/v1"


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row of a request that was drawn, JSON-ready throughout.

    Attributes:
        request_id: of the request.
        row: its place in the request, from 0.
        input_hash: of its inputs, by which the same row is known again.
        time: of the request, RFC 3339.
        model: that answered.
        version: of it.
        digest: of the package.
        arm: of traffic.
        strategy: by which it was drawn.
        seed: of the draw.
        score: by the strategy.
        inclusion_probability: with which it was drawn.
        weight: for how many requests it stands: 1 / inclusion probability, and 1 / the log's sampling.
        inputs: its cells by column.
        prediction: what it was answered with.
        masked: columns that do not hold what was asked.
        label: None until somebody gives one.
    """

    request_id: str
    row: int
    input_hash: str
    time: str
    model: str
    version: str
    digest: str
    arm: str
    strategy: str
    seed: int
    score: float
    inclusion_probability: float
    weight: float
    inputs: Mapping[str, Any]
    prediction: Mapping[str, Any]
    masked: tuple[str, ...] = field(default=())
    label: Any = None

    @property
    def id(self) -> str:
        return f"{self.request_id}#{self.row}"

    def document(self) -> dict[str, Any]:
        """One line of a sample."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {"schema": SCHEMA, "id": self.id, **own, "masked": list(self.masked)}

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read a line.

        Raises:
            UsageError: it is none of a sample.
        """
        if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
            raise UsageError(f"This is no row of the schema {SCHEMA!r}.")
        try:
            return cls(
                request_id=_text(document, "request_id"),
                row=int(document["row"]),
                input_hash=_text(document, "input_hash"),
                time=_text(document, "time"),
                model=_text(document, "model"),
                version=_text(document, "version"),
                digest=_text(document, "digest"),
                arm=_text(document, "arm"),
                strategy=_text(document, "strategy"),
                seed=int(document["seed"]),
                score=float(document["score"]),
                inclusion_probability=_share(document["inclusion_probability"]),
                weight=float(document["weight"]),
                inputs=dict(document["inputs"]),
                prediction=dict(document["prediction"]),
                masked=tuple(str(name) for name in document.get("masked", ())),
                label=document.get("label"),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"A sampled row cannot be read: {printable(str(error), 100)}.") from error


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is no text")
    return value


def _share(value: Any) -> float:
    share = float(value)
    if not 0 < share <= 1:
        raise ValueError("an inclusion probability lies in (0, 1]")
    return share


def read_sample(path: Path) -> Iterator[SampledRow]:
    """The rows of a file that `mlx sample` wrote as JSON Lines, one at a time.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot be read; names the line.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    yield SampledRow.from_document(orjson.loads(line))
                except orjson.JSONDecodeError as error:
                    raise UsageError(f"{path}, line {number}: it is no JSON.") from error
                except UsageError as error:
                    raise UsageError(f"{path}, line {number}: {error.message}") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no sample {path}.") from error
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
