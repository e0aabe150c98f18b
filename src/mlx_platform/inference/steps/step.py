"""What a pipeline step is: a small object made from declared options that turns one batch into the next.

A step is made without touching a file; `load` reads its assets once, before the first batch.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import Array, TensorSpec
from mlx_platform.core.text import did_you_mean, printable
from mlx_platform.inference.parts import Merge

Batch = dict[str, Array]
"""Arrays by name, row by row: raw columns first, tensors once a step has made them."""

PARTS = "*parts"
"""In a batch: into how many parts a step took each row [rows]; the tensors it made hold parts, not rows."""

WEIGHTS = "*weights"
"""In a batch, beside `PARTS`: how much each part has to say [parts]."""

GoOn = Callable[[], None]
"""Called from time to time by what may take long; raises where nobody waits for it any more."""


def for_ever() -> None:
    """Let it take as long as it wants."""


ColumnKind = Literal["number", "category", "text", "image", "tensor"]


class CellError(UsageError):
    """One cell of the input cannot be used; `row` counts from 0 within the rows that were given."""

    def __init__(self, column: str, row: int, problem: str, *, hint: str = "") -> None:
        super().__init__(
            f"Column {printable(column, 128)!r}, row {row}: {problem}.", hint=hint, column=column, row=row
        )
        self.column = column
        self.row = row
        self.problem = problem

    def __reduce__(self) -> tuple[Any, ...]:
        # As an exception it would be made of its sentence alone on the other side of a process.
        return partial(CellError, hint=self.hint), (self.column, self.row, self.problem)

    def moved(self, rows: int) -> "CellError":
        """The same complaint about a batch that began `rows` further up."""
        return CellError(self.column, self.row + rows, self.problem, hint=self.hint)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a step stands: the tensors around it and the limits of the model it belongs to."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...]
    max_text_chars: int
    max_image_bytes: int

    def input(self, name: str) -> TensorSpec:
        """The input a step feeds; the model's only one where the step names none."""
        return _named(self.inputs, name, "input")

    def output(self, name: str) -> TensorSpec:
        return _named(self.outputs, name, "output")


def _named(tensors: tuple[TensorSpec, ...], name: str, noun: str) -> TensorSpec:
    if not name and len(tensors) == 1:
        return tensors[0]
    names = [tensor.name for tensor in tensors]
    if not name:
        raise UsageError(f"The step must name an {noun}, as the model has several: {', '.join(names)}.")
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    raise UsageError(f"The model has no {noun} {printable(name)!r}.", hint=did_you_mean(name, names))


class Options:
    """A step's table in `model.toml`, read strictly: wrong types and unknown keys are errors."""

    def __init__(self, step: str, values: Mapping[str, Any]) -> None:
        self._step = step
        self._values = dict(values)
        self._known: list[str] = []

    def take(
        self, key: str, kind: type | tuple[type, ...], default: Any = None, *, required: bool = False
    ) -> Any:
        """The value of `key`, of exactly the given type (a boolean is no number)."""
        self._known.append(key)
        if key not in self._values:
            if required:
                raise UsageError(f"Step {self._step!r} needs the option {key!r}.")
            return default
        value = self._values.pop(key)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(value) not in kinds:
            wanted = " or ".join(one.__name__ for one in kinds)
            raise UsageError(f"Step {self._step!r}: {key} takes {wanted}, not {printable(repr(value), 80)}.")
        return value

    def text(self, key: str, default: str = "", *, required: bool = False) -> str:
        value: str = self.take(key, str, default, required=required)
        return value

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        value = self.text(key, default)
        if value not in set(choices):
            raise UsageError(
                f"Step {self._step!r}: {key} = {printable(value, 80)!r} is not possible.",
                hint=did_you_mean(value, choices),
            )
        return value

    def integer(self, key: str, default: int, *, minimum: int) -> int:
        value: int = self.take(key, int, default)
        if value < minimum:
            raise UsageError(f"Step {self._step!r}: {key} must be at least {minimum}, not {value}.")
        return value

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        values = self.take(key, list, list(default))
        if any(type(value) not in {int, float} for value in values):
            raise UsageError(f"Step {self._step!r}: {key} takes a list of numbers.")
        return tuple(float(value) for value in values)

    def words(self, key: str, *, required: bool = False) -> tuple[str, ...]:
        values = self.take(key, list, [], required=required)
        if any(type(value) is not str for value in values):
            raise UsageError(f"Step {self._step!r}: {key} takes a list of texts.")
        return tuple(values)

    def done(self) -> None:
        """Refuse what no `take` asked for."""
        for key in self._values:
            raise UsageError(
                f"Step {self._step!r} has no option {printable(key, 80)!r}.",
                hint=did_you_mean(key, self._known),
            )


class Step:
    """The base of all steps.

    Attributes:
        takes: names it reads from the batch, each with what it expects there.
        makes: names it adds to the batch or replaces.
        answers: those of `makes` that a caller of the model sees.
        cheap: over a few rows it costs less than handing it to another thread.
        merge: how the outputs of a row's parts become the row's, where the step may take rows in parts.
    """

    kind: ClassVar[str]
    cheap: ClassVar[bool] = True
    merge: Merge | None = None
    takes: dict[str, ColumnKind]
    makes: tuple[str, ...]
    answers: tuple[str, ...] = ()

    def __init__(self, options: Options, site: Site) -> None:
        raise NotImplementedError

    def load(self, root: Path) -> None:
        """Read the assets, given the package's folder."""

    def lengths(self, batch: Batch) -> Array | None:  # noqa: ARG002 - most steps do not ask
        """About how long each row will be [rows]; None where all rows become equally long."""
        return None

    def __call__(self, batch: Batch) -> Batch:
        """The batch with what this step makes.

        Raises:
            UsageError: a cell cannot be used; `CellError` says which.
        """
        raise NotImplementedError

    def run(self, batch: Batch, go_on: GoOn) -> Batch:
        """The same for somebody who may lose interest; a step that takes long asks between rows."""
        go_on()
        return self(batch)


def asset_path(root: Path, name: str, step: str) -> Path:
    """A file of the package's `assets` folder; the name cannot leave it.

    Raises:
        UsageError: the name is no plain relative path, or there is no such file.
    """
    parts = name.split("/")
    if not name or any(part in {"", ".", ".."} for part in parts) or "\\" in name or not name.isprintable():
        raise UsageError(f"Step {step!r}: {printable(name, 80)!r} is no name of an asset.")
    path = root.joinpath("assets", *parts)
    if not path.is_file():
        raise UsageError(f"Step {step!r}: the package has no assets/{name}.")
    return path
