"""A request, and its answer in a run of its own."""

from dataclasses import dataclass, field

from mlx_platform.core.errors import MlxError
from mlx_platform.core.tensors import Columns
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.pipeline import Encoded


@dataclass(frozen=True, slots=True)
class Case:
    """A request: raw columns for the whole pipeline, or tensors for the network alone.

    Attributes:
        name: its id, or the rows of the file.
        inputs: all with the same number of rows.
        raw: which of the two it is.
        asked: the output tensors that were asked for; None for all.
    """

    name: str
    inputs: Columns
    raw: bool
    asked: tuple[str, ...] | None = None

    @property
    def rows(self) -> int | None:
        """How many rows it has; None where its tensors do not agree on it."""
        counts = {len(array) if array.ndim else None for array in self.inputs.values()}
        return counts.pop() if len(counts) == 1 else None


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers with the hashes of the stages that led to them; `problem` says why there are none."""

    columns: Columns = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def answer(model: Model, case: Case) -> Answered:
    """A request in a run of its own; rows of a network that fixes their number are filled up to it."""
    try:
        if case.raw and model.spec.fixed_rows is not None:
            answers = model.predict(case.inputs)
            return Answered(answers.columns, {"logits": stage_hash(answers.tensors)})
        encoded = model.prepare(case.inputs) if case.raw else Encoded(dict(case.inputs))
        hashes = {"tensor": stage_hash(encoded.feeds)}
        tensors = encoded.merged(model.run(encoded.feeds, case.asked))
        hashes["logits"] = stage_hash(tensors)
        if not case.raw:
            return Answered(tensors, hashes)
        columns = model.decode(tensors)
        return Answered(columns, hashes | {"output": stage_hash(columns)})
    except MlxError as error:
        return Answered(problem=error.message)
