"""Logged requests once more through the model, in batches, as the server ran them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.tensors import Array, Columns, Tensors, decode_array
from mlx_platform.evaluation.agreement import OTHER_BATCH, AnswerAgreement, compare_answers
from mlx_platform.evaluation.consistency import Tally, first_difference, runtime_difference
from mlx_platform.inference.hashes import stage_hash
from mlx_platform.inference.model import Model
from mlx_platform.inference.pipeline import Encoded
from mlx_platform.workflows.replay.observer import Mismatch, Observer
from mlx_platform.workflows.replay.requests import Request

BATCH_ROWS = 64
_BY_ROW = frozenset({"columns", "categories"})  # steps whose rows know nothing of each other


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose inputs are encoded, with the hashes of the stages up to there."""

    request: Request
    encoded: Encoded
    rows: int
    hashes: Mapping[str, str]

    @property
    def feeds(self) -> Tensors:
        return self.encoded.feeds


@dataclass(frozen=True, slots=True)
class Replayed:
    """How the answers compare, the hashes of all stages, and the answers computed anew."""

    answer: AnswerAgreement
    hashes: Mapping[str, str]
    answers: Columns


class Replayer:
    """Runs requests through a model and counts how their answers compare.

    Requests of one shape share a run, since one run a request would take many times as long. A request that
    disagrees in company runs again alone before it counts, so that no model is accused of what a batch does.
    """

    def __init__(self, model: Model, tally: Tally, observer: Observer | None = None) -> None:
        self._model = model
        self._tally = tally
        self._observer = observer
        self._waiting: dict[Any, list[Prepared]] = {}
        self._unprepared: dict[Any, list[Request]] = {}
        self._fixed = model.spec.fixed_rows is not None
        # Numbers are prepared row by row whoever is beside them; texts are filled up to the longest.
        self._by_row = bool(model.spec.pre) and all(step.kind in _BY_ROW for step in model.spec.pre)

    def add(self, request: Request) -> None:
        """Take a request; it is counted when its batch is full, or at `finish`."""
        if self._fixed and request.raw:
            self._count(request, self._padded(request))
            return
        shapes = [array.shape for array in request.inputs.values()]
        rows = {shape[:1] for shape in shapes}
        if not (self._by_row and request.raw) or len(rows) > 1 or () in rows:
            self._add_alone(request)
            return
        form = tuple((name, array.dtype.str, array.shape[1:]) for name, array in request.inputs.items())
        group = self._unprepared.setdefault(form, [])
        group.append(request)
        if len(group) >= BATCH_ROWS:
            self._prepare_together(self._unprepared.pop(form))

    def _add_alone(self, request: Request) -> None:
        try:
            prepared = self._prepare(request)
        except MlxError:
            # The server answered what cannot be answered here.
            self._count(request, None)
            return
        self._wait(prepared)

    def _wait(self, prepared: Prepared) -> None:
        key = self._key(prepared)
        waiting = self._waiting.setdefault(key, [])
        waiting.append(prepared)
        if key is None or sum(one.rows for one in waiting) >= BATCH_ROWS:
            self._run(self._waiting.pop(key))

    def _prepare_together(self, group: Sequence[Request]) -> None:
        """Prepare requests of one form in one go; one by one where that fails, to find out which it is."""
        inputs = [request.inputs for request in group]
        joined = {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}
        rows = [len(next(iter(one.values()))) for one in inputs]
        ends = np.cumsum(rows)
        try:
            feeds = self._model.encode(joined)
        except MlxError:
            feeds = {}
        if not feeds or any(not array.ndim or len(array) != ends[-1] for array in feeds.values()):
            for request in group:
                self._add_alone(request)
            return
        parts = {name: np.split(array, ends[:-1]) for name, array in feeds.items()}
        for number, request in enumerate(group):
            own = {name: part[number] for name, part in parts.items()}
            hashes = {"raw": stage_hash(request.inputs), "tensor": stage_hash(own)}
            self._wait(Prepared(request, Encoded(own), rows[number], hashes))

    def replay(self, request: Request) -> Replayed | None:
        """Run a request alone, without counting it; None when it cannot be answered any more."""
        if self._fixed and request.raw:
            return self._padded(request)
        try:
            return self._alone(self._prepare(request), None)
        except MlxError:
            return None

    def finish(self) -> None:
        """Run what is still waiting."""
        for group in self._unprepared.values():
            self._prepare_together(group)
        self._unprepared.clear()
        for prepared in self._waiting.values():
            self._run(prepared)
        self._waiting.clear()

    def _prepare(self, request: Request) -> Prepared:
        if request.raw:
            encoded = self._model.prepare(request.inputs)
            hashes = {"raw": stage_hash(request.inputs), "tensor": stage_hash(encoded.feeds)}
        else:
            encoded = Encoded(dict(request.inputs))
            hashes = {"tensor": stage_hash(encoded.feeds)}
        first = next(iter(encoded.feeds.values()))
        return Prepared(request, encoded, len(first) if first.ndim else 0, hashes)

    def _key(self, prepared: Prepared) -> Any:
        """What requests of one run have in common; None for one that runs alone."""
        arrays = prepared.feeds.values()
        if self._fixed or any(array.ndim == 0 or len(array) != prepared.rows for array in arrays):
            return None
        shapes = tuple(
            (name, array.dtype.str, array.shape[1:]) for name, array in sorted(prepared.feeds.items())
        )
        return prepared.request.raw, self._asked(prepared), shapes

    def _asked(self, prepared: Prepared) -> tuple[str, ...] | None:
        """The tensors to ask for; None for all of them."""
        return None if prepared.request.raw else tuple(sorted(prepared.request.outputs))

    def _run(self, group: Sequence[Prepared]) -> None:
        together = self._run_together(group) if len(group) > 1 else None
        for number, prepared in enumerate(group):
            found = self._compared(prepared, together[number]) if together else None
            if found is None or not found.answer.agrees:
                found = self._alone(prepared, found)
            self._count(prepared.request, found)

    def _run_together(self, group: Sequence[Prepared]) -> list[dict[str, Array]] | None:
        """The output tensors of each request; None when they cannot share a run."""
        names = group[0].feeds.keys()
        feeds = {name: np.concatenate([prepared.feeds[name] for prepared in group]) for name in names}
        ends = np.cumsum([prepared.rows for prepared in group])
        try:
            outputs = self._model.run(feeds, self._asked(group[0]))
        except MlxError:
            return None
        if any(array.ndim == 0 or len(array) != ends[-1] for array in outputs.values()):
            return None
        parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
        return [{name: part[number] for name, part in parts.items()} for number in range(len(group))]

    def _alone(self, prepared: Prepared, before: Replayed | None) -> Replayed | None:
        try:
            tensors = self._model.run(prepared.feeds, self._asked(prepared))
        except MlxError:
            return None
        found = self._compared(prepared, tensors)
        if found is None or before is None:
            return found
        # A stage is the same if it was so in either run: the server's batch was another one again.
        logged = prepared.request.record.hashes
        either = {
            stage: before.hashes[stage] if before.hashes.get(stage) == logged.get(stage) else value
            for stage, value in found.hashes.items()
        }
        return Replayed(found.answer, either, found.answers)

    def _compared(self, prepared: Prepared, tensors: dict[str, Array]) -> Replayed | None:
        request = prepared.request
        hashes = dict(prepared.hashes)
        try:
            logits = prepared.encoded.merged(tensors)
            answers: Mapping[str, Array] = self._model.decode(logits) if request.raw else logits
        except MlxError:
            return None
        hashes["logits"] = stage_hash(logits)
        if request.raw:
            hashes["output"] = stage_hash(answers)
        logged, anew = request.compared(answers)
        return Replayed(compare_answers(logged, anew, OTHER_BATCH, measured=True), hashes, anew)

    def _padded(self, request: Request) -> Replayed | None:
        """A network of a fixed number of rows fills up and cuts off by itself; its tensors are not hashed."""
        try:
            answers = self._model.predict(request.inputs)
        except MlxError:
            return None
        hashes = {
            "raw": stage_hash(request.inputs),
            "logits": stage_hash(answers.tensors),
            "output": stage_hash(answers.columns),
        }
        logged, anew = request.compared(answers.columns)
        return Replayed(compare_answers(logged, anew, OTHER_BATCH, measured=True), hashes, anew)

    def _count(self, request: Request, found: Replayed | None) -> None:
        """Count a request; None for one that the server answered and that cannot be answered here."""
        record = request.record
        if found is None:
            self._tally.add_refused(record.request_id)
        else:
            other = runtime_difference(record.runtime, self._model.runtime)
            self._tally.add(record.request_id, found.answer, record.hashes, found.hashes, other)
        if record.stages and not self._fixed:
            self._tally.add_alone(stages_alone(self._model, request))
        if self._observer is not None:
            self._observer.compared(request)
            if found is None or not found.answer.agrees:
                self._observer.mismatch(_mismatch(request, found))


def stages_alone(model: Model, request: Request) -> dict[str, bool]:
    """Whether each stage does with what the server gave it what the server's did.

    What the first stage that differs hands on spoils all later ones; given the server's own tensors, only the
    stages at fault differ.

    Args:
        model: the package.
        request: one to `predict` that was logged with its tensors.

    Returns:
        by stage, as far as the log holds what it takes; a stage that refuses what it is given differs.
    """
    try:
        tensor, logits = (
            {name: decode_array(encoded) for name, encoded in request.record.stages.get(stage, {}).items()}
            for stage in ("tensor", "logits")
        )
    except UsageError:
        return {}
    found = {"tensor": False}
    with suppress(MlxError):
        ours = model.prepare(request.inputs)
        found["tensor"] = compare_answers(tensor, ours.feeds).agrees
        if ours.parts is None:  # else the network answers parts of rows, and the log holds them put together
            found["logits"] = _does(partial(model.run, tensor), logits)
    found["output"] = _does(partial(model.decode, logits), request.outputs)
    return found


def _does(stage: Callable[[], Columns], expected: Columns) -> bool:
    try:
        return compare_answers(expected, stage(), OTHER_BATCH).agrees
    except MlxError:
        return False


def _mismatch(request: Request, found: Replayed | None) -> Mismatch:
    if found is None:
        return Mismatch(request, "", {}, None)
    stage = first_difference(request.record.hashes, found.hashes)
    return Mismatch(request, stage, found.answer.outputs, found.answers)
