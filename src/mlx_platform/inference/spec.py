"""What a model says about itself: `model.toml`, read strictly and written the same way every time."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import NUMPY_TYPES, TensorSpec
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.inference.graph import Network
from mlx_platform.inference.steps.catalog import POST, PRE, make_step
from mlx_platform.inference.steps.step import Site, Step

FORMAT = 1
SPEC_CAP = 1024 * 1024  # bytes of a model.toml
Task = Literal["classification", "multilabel", "regression", "tensors"]
_ANSWERING = {"classification": "labels", "multilabel": "threshold", "regression": "value"}


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A declared step: its name and its options."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may bring.

    Attributes:
        max_rows: rows.
        max_text_chars: characters of one text cell.
        max_image_bytes: encoded bytes of one image.
    """

    max_rows: int = 1024
    max_text_chars: int = 100_000
    max_image_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's task, signature, labels, pipeline and limits.

    `inputs` and `outputs` are empty only in a source that leaves them to the network's own signature.
    `padding` is what fills up sequences that share a run with longer ones, by input.
    """

    task: Task
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...] = ()
    pre: tuple[StepSpec, ...] = ()
    post: tuple[StepSpec, ...] = ()
    limits: Limits = Limits()
    padding: Mapping[str, float] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Raw columns that the pipeline takes by name; () when one plain input takes all columns in order."""
        taken: dict[str, None] = {}
        made: set[str] = set()
        for step in self.pre_steps():
            taken |= dict.fromkeys(name for name in step.takes if name not in made)
            made |= set(step.makes)
        plain = [tensor.name for tensor in self.inputs if tensor.name not in made]
        if not self.pre and len(self.inputs) == 1 and 1 <= len(self.inputs[0].shape) <= 2:
            return ()
        return (*taken, *(name for name in plain if name not in taken))

    @property
    def fixed_rows(self) -> int | None:
        """The rows of every run, where the network fixes its first dimension; None where they vary."""
        shape = self.inputs[0].shape if self.inputs else ()
        return shape[0] if shape else None

    def pre_steps(self) -> tuple[Step, ...]:
        """New step objects of the way in, their assets not loaded."""
        return tuple(make_step(step.kind, step.options, self._site(), PRE) for step in self.pre)

    def post_steps(self) -> tuple[Step, ...]:
        """New step objects of the way out; the task implies one where none is declared."""
        return tuple(make_step(step.kind, step.options, self._site(), POST) for step in self._answering())

    def _answering(self) -> tuple[StepSpec, ...]:
        if self.post or self.task == "tensors":
            return self.post
        rank = 1 if self.task == "regression" else 2
        names = [
            tensor.name
            for tensor in self.outputs
            if tensor.datatype.startswith("FP") and rank <= len(tensor.shape) <= 2
        ]
        if len(names) != 1:
            raise UsageError(
                f"The outputs do not say which one answers the {self.task}.", hint="Declare a [[post]] step."
            )
        return (StepSpec(_ANSWERING[self.task], {"output": names[0]}),)

    def _site(self) -> Site:
        return Site(
            self.inputs, self.outputs, self.labels, self.limits.max_text_chars, self.limits.max_image_bytes
        )


def check_spec(spec: ModelSpec) -> None:
    """Refuse a pipeline whose steps cannot be made or do not meet.

    Raises:
        UsageError: names the step and what is wrong.
    """
    made = set()
    for step in spec.pre_steps():
        made |= set(step.makes)
    inputs = {tensor.name for tensor in spec.inputs}
    for name in spec.padding:
        if name not in inputs:
            raise UsageError(
                f"padding names {printable(name, 80)!r}, which is no input.", hint=did_you_mean(name, inputs)
            )
    have = {tensor.name for tensor in spec.outputs}
    for step in spec.post_steps():
        for name in step.takes:
            if name not in have:
                raise UsageError(
                    f"Step {step.kind!r} reads {printable(name, 80)!r}, which nothing before it makes.",
                    hint=did_you_mean(name, have),
                )
        have |= set(step.makes)


def parse_spec(text: str, source: str) -> ModelSpec:
    """Read a `model.toml`.

    Args:
        text: the file's content.
        source: how messages call the file.

    Raises:
        UsageError: no TOML, an unknown key (with the closest known one), or a value that does not fit.
    """
    if len(text) > SPEC_CAP:
        raise UsageError(f"{source} has {len(text):,} characters, more than {SPEC_CAP:,}.")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is no TOML: {printable(str(error), 200)}.") from error
    reader = _Reader(source)
    try:
        spec = reader.spec(document)
        if spec.inputs and spec.outputs:
            check_spec(spec)
    except UsageError as error:
        if error.message.startswith(source):
            raise
        raise UsageError(f"{source}: {error.message}", hint=error.hint) from error
    return spec


@dataclass(frozen=True, slots=True)
class _Reader:
    source: str

    def spec(self, document: dict[str, Any]) -> ModelSpec:
        known = ("format", "task", "labels", "inputs", "outputs", "pre", "post", "limits", "padding")
        self._keys(document, known, "")
        if document.get("format") != FORMAT:
            raise UsageError(f"{self.source}: format must be {FORMAT}.")
        task: Any = document.get("task")
        if task not in get_args(Task):
            raise UsageError(
                f"{self.source}: task = {printable(repr(task), 80)} is not possible.",
                hint=did_you_mean(str(task), get_args(Task)),
            )
        return ModelSpec(
            task=task,
            inputs=self._tensors(document, "inputs"),
            outputs=self._tensors(document, "outputs"),
            labels=self._labels(document),
            pre=self._steps(document, "pre"),
            post=self._steps(document, "post"),
            limits=self._limits(document),
            padding=self._padding(document),
        )

    def _keys(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                raise UsageError(
                    f"{self.source}: unknown key {printable(where + key, 80)!r}.",
                    hint=did_you_mean(key, known),
                )

    def _tables(self, document: dict[str, Any], key: str) -> list[dict[str, Any]]:
        tables = document.get(key, [])
        if not isinstance(tables, list) or any(not isinstance(table, dict) for table in tables):
            raise UsageError(f"{self.source}: {key} is written as [[{key}]] tables.")
        return tables

    def _tensors(self, document: dict[str, Any], key: str) -> tuple[TensorSpec, ...]:
        tensors = tuple(self._tensor(table, key) for table in self._tables(document, key))
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise UsageError(f"{self.source}: two {key} have the same name.")
        return tensors

    def _tensor(self, table: dict[str, Any], key: str) -> TensorSpec:
        self._keys(table, ("name", "datatype", "shape"), f"{key}.")
        name, datatype, shape = table.get("name"), table.get("datatype"), table.get("shape")
        if not isinstance(name, str) or not name:
            raise UsageError(f"{self.source}: each of {key} needs a name.")
        if not isinstance(datatype, str) or datatype not in NUMPY_TYPES:
            raise UsageError(
                f"{self.source}: {key} {printable(name, 80)!r} has no known datatype.",
                hint=did_you_mean(str(datatype), NUMPY_TYPES),
            )
        if not isinstance(shape, list) or any(type(dim) is not int or dim < -1 or dim == 0 for dim in shape):
            raise UsageError(
                f"{self.source}: the shape of {printable(name, 80)!r} takes sizes, and -1 for what varies."
            )
        return TensorSpec(name, datatype, tuple(None if dim == -1 else dim for dim in shape))

    def _labels(self, document: dict[str, Any]) -> tuple[str, ...]:
        labels = document.get("labels", [])
        if not isinstance(labels, list) or any(not isinstance(label, str) for label in labels):
            raise UsageError(f"{self.source}: labels takes a list of texts.")
        if len(set(labels)) != len(labels):
            raise UsageError(f"{self.source}: labels names a class twice.")
        return tuple(labels)

    def _steps(self, document: dict[str, Any], key: str) -> tuple[StepSpec, ...]:
        steps = []
        for table in self._tables(document, key):
            kind = table.get("step")
            if not isinstance(kind, str):
                raise UsageError(f'{self.source}: each of {key} names its step, as in step = "columns".')
            steps.append(StepSpec(kind, {name: value for name, value in table.items() if name != "step"}))
        return tuple(steps)

    def _limits(self, document: dict[str, Any]) -> Limits:
        table = document.get("limits", {})
        if not isinstance(table, dict):
            raise UsageError(f"{self.source}: limits is written as a [limits] table.")
        self._keys(table, tuple(limit.name for limit in fields(Limits)), "limits.")
        for key, value in table.items():
            if type(value) is not int or value < 1:
                raise UsageError(f"{self.source}: limits.{key} takes a positive integer.")
        return Limits(**table)

    def _padding(self, document: dict[str, Any]) -> dict[str, float]:
        table = document.get("padding", {})
        if not isinstance(table, dict) or any(type(value) not in {int, float} for value in table.values()):
            raise UsageError(f"{self.source}: padding is written as a [padding] table of input = number.")
        return table


def write_spec(spec: ModelSpec) -> str:
    """The `model.toml` of a spec: the same text for the same spec, and `parse_spec` reads it back."""
    lines = [f"format = {FORMAT}", f"task = {_toml(spec.task)}"]
    if spec.labels:
        lines.append(f"labels = {_toml(list(spec.labels))}")
    for key, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        for tensor in tensors:
            shape = [-1 if dim is None else dim for dim in tensor.shape]
            lines += ["", f"[[{key}]]", f"name = {_toml(tensor.name)}"]
            lines += [f"datatype = {_toml(tensor.datatype)}", f"shape = {_toml(shape)}"]
    for key, steps in (("pre", spec.pre), ("post", spec.post)):
        for step in steps:
            lines += ["", f"[[{key}]]", f"step = {_toml(step.kind)}"]
            lines += [f"{_toml_key(name)} = {_toml(value)}" for name, value in step.options.items()]
    lines += ["", "[limits]"]
    lines += [f"{limit.name} = {getattr(spec.limits, limit.name)}" for limit in fields(Limits)]
    if spec.padding:
        lines += ["", "[padding]"]
        lines += [f"{_toml_key(name)} = {_toml(value)}" for name, value in spec.padding.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML does not allow as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    raise UsageError(f"{type(value).__name__} has no form in model.toml.")


def _toml_key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _toml(key)


def spec_from_network(network: Network) -> ModelSpec:
    """The spec of a network that was read: its signature, and the steps that answer its task."""
    post: list[StepSpec] = []
    if network.task == "classification" and network.answer:
        source = network.answer
        if network.scores:
            post.append(StepSpec("softmax", {"output": source, "into": "probabilities"}))
            source = "probabilities"
        post.append(StepSpec("labels", {"output": source}))
    elif network.task == "regression":
        post.append(StepSpec("value", {"output": network.answer}))
    return ModelSpec(
        task=network.task,
        inputs=network.inputs,
        outputs=network.outputs,
        labels=network.labels,
        post=tuple(post),
    )
