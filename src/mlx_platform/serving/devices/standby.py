"""What answers when no device of a model does: a lighter version, and after that a rule."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, Columns, Tensors, row_count, text_column
from mlx_platform.core.text import listed, printable
from mlx_platform.inference.model import Model
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.identity import Identity
from mlx_platform.serving.metrics import Sample
from mlx_platform.serving.protocol_v2 import InferRequest
from mlx_platform.serving.refusal import Refusal

FALLBACK_ARM = "fallback"
RULE_ARM = "rule"
_CELLS = (str, int, float, bool)


@dataclass(frozen=True, slots=True)
class Rule:
    """The same answer for every row: a value, or a list of numbers, by answer column."""

    answer: Mapping[str, Any]

    def columns(self, rows: int) -> dict[str, Array]:
        return {name: _column(value, rows) for name, value in self.answer.items()}


def parse_rule(answer: Mapping[str, object]) -> Rule | None:
    """Read the table of an answer; None for an empty one.

    Raises:
        UsageError: a value that no column holds.
    """
    for name, value in answer.items():
        cells = value if isinstance(value, list | tuple) else [value]
        if not cells or not all(isinstance(cell, _CELLS) and _finite(cell) for cell in cells):
            raise UsageError(
                f"[serving.degrade] answer has no usable value for {printable(name, 80)!r}.",
                hint="A value is a text, a number, true or false, or a list of numbers.",
            )
    return Rule(answer) if answer else None


class Standby:
    """Lives on the event loop of the engine that it stands by.

    Args:
        model: the model that is served.
        light: an engine of another version that takes the same requests; see `check_fallback`.
        rule: the answer to `/predict` when that one fails as well.
    """

    def __init__(self, model: Model, light: Engine | None, rule: Rule | None) -> None:
        self.light = light
        self._rule = rule
        self.answers: Counter[str] = Counter({"fallback": 0, "rule": 0})
        self._rule_identity = Identity.of(model, RULE_ARM, "rule")
        self._light_identity: Identity | None = None
        self._takes_tensors = False
        if light is not None:
            self._light_identity = Identity.of(light.model, FALLBACK_ARM, "fallback")
            self._takes_tensors = _tensors(model) == _tensors(light.model)

    @property
    def covers(self) -> bool:
        """Whether there is anybody at all."""
        return self._rule is not None or self.light is not None

    async def start(self) -> None:
        """Start the lighter version.

        Raises:
            GateFailedError: it does not pass its self-check.
        """
        if self.light is not None:
            await self.light.start()

    async def close(self) -> None:
        if self.light is not None:
            await self.light.close(0.0)

    async def predict(self, rows: Any, exchange: Exchange, refusal: Refusal) -> Columns:
        """The answers to raw rows that the model itself could not give.

        Raises:
            Refusal: the model's own, where nobody answers here either.
        """
        if self.light is not None:
            self._hand_over(exchange, self.light)
            try:
                answers = await self.light.predict(rows, exchange)
            except Refusal:
                if self._rule is None:
                    raise refusal from None
            else:
                return self._by_light(exchange, answers)
        if self._rule is None:
            raise refusal
        exchange.identity = self._rule_identity
        # What a rule says is no answer of the model, so it is not logged as one.
        exchange.outputs = exchange.logits = {}
        self.answers["rule"] += 1
        return self._rule.columns(exchange.rows or row_count(exchange.inputs))

    async def infer(self, request: InferRequest, exchange: Exchange, refusal: Refusal) -> Tensors:
        """The outputs that the model itself could not give; a rule has none.

        Raises:
            Refusal: the model's own, where nobody answers here either.
        """
        if self.light is None or not self._takes_tensors:
            raise refusal
        self._hand_over(exchange, self.light)
        try:
            outputs = await self.light.infer(request, exchange)
        except Refusal:
            raise refusal from None
        return self._by_light(exchange, outputs)

    def samples(self) -> Iterator[Sample]:
        """What the exposition shows of answers that were not the model's own."""
        for name, count in tuple(self.answers.items()):
            label = (("by", name),)
            yield Sample("mlx_degraded_answers", "Answers in the place of the model's own.", count, label)

    def _hand_over(self, exchange: Exchange, engine: Engine) -> None:
        exchange.jobs.clear()
        exchange.taken_by = engine

    def _by_light(self, exchange: Exchange, answers: Columns) -> Columns:
        exchange.identity = self._light_identity
        self.answers["fallback"] += 1
        return answers


def check_fallback(model: Model, light: Model) -> None:
    """Whether a version may answer in the place of another: it takes and gives the same.

    Raises:
        UsageError: it differs in what a client sends or gets.
    """
    name = printable(f"{light.name}/{light.version}", 200)
    if light.digest == model.digest:
        raise UsageError(f"The fallback {name} is the version that is served.")
    mine, other = _contract(model), _contract(light)
    differing = [what for what in mine if mine[what] != other[what]]
    if differing:
        raise UsageError(
            f"The fallback {name} cannot answer for {printable(model.name, 128)}/{model.version}: "
            f"it differs in its {listed(differing)}.",
            hint="A fallback takes the same columns and gives the same labels.",
        )


def _contract(model: Model) -> dict[str, Any]:
    tensors = {} if model.columns else {spec.name: spec.datatype for spec in model.spec.inputs}
    return {
        "task": model.spec.task,
        "columns": frozenset(model.columns),
        "labels": frozenset(model.labels),
        "inputs": tensors,
    }


def _tensors(model: Model) -> Any:
    """What a client of the protocol must know of a version, apart from its shapes."""
    sides = (model.spec.inputs, model.spec.outputs)
    return [{spec.name: (spec.datatype, len(spec.shape)) for spec in side} for side in sides]


def _finite(cell: str | float) -> bool:
    return isinstance(cell, str) or math.isfinite(cell)


def _column(value: Any, rows: int) -> Array:
    if isinstance(value, list | tuple):
        return np.tile(np.asarray(value), (rows, 1))
    if isinstance(value, str):
        return text_column([value] * rows)
    return np.full(rows, value)
