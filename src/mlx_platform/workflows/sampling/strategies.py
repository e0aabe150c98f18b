"""By what rows are drawn: each strategy gives a row a weight, and where it is asked for a stratum."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from mlx_platform.core.errors import UndecidedError, UsageError
from mlx_platform.core.tensors import Array, Columns, decode_array
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.drift.excess import Excess, row_weights
from mlx_platform.drift.features import output_features
from mlx_platform.drift.watched import Watched
from mlx_platform.evaluation.uncertainty import Floats, disagreement, uncertainty
from mlx_platform.traffic.record import Record
from mlx_platform.workflows.replay.requests import Request

Name = Literal["uncertain", "drifted", "disagreement", "random"]
_LEAST = 0.01
"""The score below which rows are as good as each other: all of them may be drawn, however rarely."""


class Strategy(Protocol):
    """Scores the rows of a request, from 0 to 1; None where it has nothing to say about them."""

    def scores(self, request: Request, answers: Columns) -> Floats | None:
        """The scores [rows]."""
        ...


def weights_of(scores: Floats) -> Floats:
    """By what rows are drawn: the square, so that what scores high comes first and the rest is not lost."""
    return np.maximum(scores, _LEAST) ** 2


class Random:
    """Every row is as good as any other."""

    def scores(self, request: Request, _answers: Columns) -> Floats:
        return np.ones(_rows(request))


class Uncertain:
    """What the model was least sure of."""

    def scores(self, _request: Request, answers: Columns) -> Floats:
        return uncertainty(answers)


@dataclass(frozen=True, slots=True)
class Drifted:
    """What lies in the bins that have more of the window than of the baseline, in features that drifted."""

    watched: Watched
    inputs: Mapping[str, Excess]
    outputs: Mapping[str, Excess]

    def scores(self, request: Request, answers: Columns) -> Floats:
        rows = _rows(request)
        total = row_weights(self.inputs, self.watched.inputs(request.inputs), rows)
        total = total + row_weights(self.outputs, output_features(answers), rows)
        return np.asarray(total / (1 + total), np.float64)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What another version answered otherwise, by the copies of a rollout in the log."""

    others: Mapping[str, Columns]

    @classmethod
    def of(cls, copies: Iterable[Record], decode: Callable[[str, Columns], Columns | None]) -> "Disagreement":
        """Remember what copies were answered with.

        Raises:
            UndecidedError: there are none.
        """
        found: dict[str, Columns] = {}
        for record in copies:
            try:
                outputs = {name: decode_array(encoded) for name, encoded in record.outputs.items()}
            except UsageError:
                continue
            answers = decode(record.endpoint, outputs)
            if answers:
                kept = ("label", "confidence", "value")
                found[record.request_id] = {name: answers[name] for name in kept if name in answers}
        if not found:
            raise UndecidedError(
                "The log holds no answers to copies, so no two versions can be compared.",
                hint="They are logged in the shadow step of a rollout: mlx rollout start NAME/VERSION",
            )
        return cls(found)

    def scores(self, request: Request, answers: Columns) -> Floats | None:
        other = self.others.get(request.record.request_id)
        if other is None or any(len(column) != _rows(request) for column in other.values()):
            return None
        return disagreement(answers, other)


def stratum_of(by: str | None, request: Request, answers: Columns, row: int) -> str:
    """The stratum of a row: a label, the version, or the value of an input column.

    Raises:
        UsageError: there is no such column.
    """
    if by is None:
        return ""
    if by == "version":
        return f"{request.record.model}/{request.record.version}"
    column: Array | None = answers.get("label") if by == "label" else request.inputs.get(by)
    if column is None:
        known = ["version", *(["label"] if "label" in answers else []), *request.inputs]
        raise UsageError(
            f"There is no column {printable(by, 80)!r} to draw by.", hint=did_you_mean(by, known)
        )
    return printable(str(column[row]), 200)


def _rows(request: Request) -> int:
    return len(next(iter(request.inputs.values())))
