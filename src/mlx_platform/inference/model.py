"""The one inference path: evaluation, replay, quantization checks, embedding and the server all run this."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_platform.core.errors import MlxError, UsageError
from mlx_platform.core.tensors import Array, Columns, Tensors, TensorSpec, row_count, text_column
from mlx_platform.core.text import printable
from mlx_platform.core.version import VERSION
from mlx_platform.inference.cases import GoldenCase
from mlx_platform.inference.golden import compare_case
from mlx_platform.inference.package import Package
from mlx_platform.inference.pipeline import Encoded, Pipeline
from mlx_platform.inference.rows import Kinds, as_columns, rows_from_json
from mlx_platform.inference.session import Session, open_session, runtime
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.step import CellError, GoOn, for_ever


@dataclass(frozen=True, slots=True)
class Answers:
    """What the model said.

    Attributes:
        columns: classification: `label` (object [n]), `label_index` (INT64 [n]), `confidence` [n] and
            `probabilities` [n, classes]; multilabel: `labels` (text such as `cat|dog` [n]) and
            `probabilities`; regression: `value` [n]; otherwise the outputs.
        tensors: the raw outputs by name.
    """

    columns: dict[str, Array]
    tensors: dict[str, Array]


_LIBRARIES = {"tokenize": "tokenizers", "image": "opencv-python-headless"}
"""What steps prepare inputs with."""


def runtime_name(spec: ModelSpec, session: Session) -> str:
    """Code, libraries and device that answers depend on: `mlx/0.1.0 numpy/2.4.6 onnxruntime/1.32.0 cpu`."""
    libraries = {_LIBRARIES[step.kind]: "" for step in spec.pre if step.kind in _LIBRARIES}
    versions = {"mlx": VERSION, "numpy": np.__version__, "onnxruntime": runtime().__version__}
    versions |= {name: metadata.version(name) for name in libraries}
    return " ".join([*(f"{name}/{version}" for name, version in versions.items()), session.device])


class Model:
    """A loaded package. Every method may be called from many threads at once.

    Attributes:
        runtime: what computes its answers; see `runtime_name`.
    """

    def __init__(self, package: Package, session: Session, *, name: str, version: str) -> None:
        self.package = package
        self.spec: ModelSpec = package.spec
        self.session = session
        self.name = name
        self.version = version
        self._pipeline = Pipeline(self.spec, package.root)
        _check_signature(self.spec, session)
        self.runtime = runtime_name(self.spec, session)

    @classmethod
    def load(
        cls,
        package: Package,
        *,
        name: str = "",
        version: str = "0",
        device: str = "auto",
        threads: int = 0,
        memory: int = 0,
    ) -> "Model":
        """Load the network and the pipeline's assets of an opened package.

        Args:
            package: see `open_package`.
            name: the registered name, or the file's stem.
            version: the registered number, "0" for an unregistered file.
            device: see `open_session`.
            threads: see `open_session`.
            memory: see `open_session`.

        Raises:
            UsageError: the network cannot be loaded, or differs from what `model.toml` declares.
        """
        session = open_session(package.model_path, device=device, threads=threads, memory=memory)
        return cls(package, session, name=name, version=version)

    def use(self, session: Session) -> None:
        """Run on another session of the same network from now on; runs that have begun end where they are."""
        _check_signature(self.spec, session)
        self.session = session
        self.runtime = runtime_name(self.spec, session)

    @property
    def digest(self) -> str:
        return self.package.digest

    @property
    def labels(self) -> tuple[str, ...]:
        return self.spec.labels

    @property
    def columns(self) -> tuple[str, ...]:
        """Raw columns taken by name; () when one plain input takes all columns in order."""
        return self._pipeline.columns

    @property
    def column_kinds(self) -> Kinds:
        """What each column holds that the pipeline takes by name."""
        return self._pipeline.kinds

    @property
    def kinds(self) -> Kinds:
        """What each column holds that is taken by name."""
        return self._pipeline.kinds

    def encode(self, rows: Columns) -> dict[str, Array]:
        """The input tensors of raw columns [n]; columns that the pipeline does not name are ignored.

        Raises:
            UsageError: a column is missing or holds what the model cannot take; names column and row.
        """
        return self._pipeline.encode(rows).feeds

    def prepare(self, rows: Columns, go_on: GoOn = for_ever) -> Encoded:
        """Like `encode`, with how to put together what the outputs say of rows that were taken in parts.

        `go_on` is called from time to time, and raises where nobody waits for the tensors any more.
        """
        return self._pipeline.encode(rows, go_on)

    def restored(self, arrays: Tensors) -> Encoded:
        """What `prepare` gave, of what its `packed` made."""
        return self._pipeline.unpacked(arrays)

    @property
    def has_cheap_steps(self) -> bool:
        """Whether the steps over a few rows cost less than handing them to another thread."""
        return self._pipeline.cheap

    def run(
        self, feeds: Tensors, outputs: Sequence[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, Array]:
        """The output tensors of input tensors; see `Session.run`."""
        return self.session.run(feeds, outputs, timeout=timeout)

    def decode(self, tensors: Tensors) -> dict[str, Array]:
        """The answer columns of output tensors; see `Answers.columns`."""
        return self._pipeline.decode(tensors)

    def predict(self, rows: Any, *, batch_size: int = 64) -> Answers:
        """Answer rows, batch by batch.

        Args:
            rows: columns by name, a data frame, a 2-D array, or a list of dicts or lists.
            batch_size: rows of one run; a network that fixes its first dimension decides itself.

        Raises:
            UsageError: names the column and the row, counted from 0 over all rows.
        """
        columns = as_columns(rows, self.spec, self.columns)
        count = row_count(columns)
        if not count:
            raise UsageError("There are no rows to predict.")
        fixed = self.spec.fixed_rows
        size = fixed or batch_size
        order = self._pipeline.by_length(columns) if size < count and not fixed else None
        if order is None:
            tensors = self._run_all(columns, size, fixed)
        else:
            try:
                sorted_tensors = self._run_all(_taken(columns, order), size, fixed)
            except CellError:
                self._refuse_first(columns, size)
                raise
            tensors = _taken(sorted_tensors, np.argsort(order))
        return Answers(self.decode(tensors), tensors)

    def _run_all(self, columns: Columns, size: int, fixed: int | None) -> dict[str, Array]:
        """The output tensors of all rows in their order, in batches of `size`."""
        outputs: list[dict[str, Array]] = []
        for count, encoded in self._encoded(columns, size, fixed):
            tensors = encoded.merged(self.run(encoded.feeds))
            outputs.append({name: value[:count] for name, value in tensors.items()} if fixed else tensors)
        return {name: _joined([output[name] for output in outputs]) for name in outputs[0]}

    def _encoded(self, columns: Columns, size: int, fixed: int | None) -> Iterator[tuple[int, Encoded]]:
        """Batch by batch the rows and their tensors; the next are made while the network runs the last."""

        def make(start: int, batch: Columns) -> tuple[int, Encoded]:
            try:
                return row_count(batch), self.prepare(filled(batch, fixed) if fixed else batch)
            except CellError as error:
                raise error.moved(start) from error

        batches = list(_batches(columns, size))
        if self.has_cheap_steps or len(batches) == 1:
            yield from (make(*batch) for batch in batches)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="mlx-pipeline") as helper:
            ahead = helper.submit(make, *batches[0])
            for batch in batches[1:]:
                ready = ahead.result()
                ahead = helper.submit(make, *batch)
                yield ready
            yield ahead.result()

    def _refuse_first(self, columns: Columns, size: int) -> None:
        """Raise for the first row that cannot be used, where rows were taken in another order."""
        for start, batch in _batches(columns, size):
            try:
                self.encode(batch)
            except CellError as error:
                raise error.moved(start) from error

    def rows_from_json(self, rows: Any) -> dict[str, Array]:
        """Parsed JSON rows as columns, read strictly.

        Args:
            rows: a list of objects, or of lists where the model takes its columns in order.

        Raises:
            UsageError: names the row and the column that cannot be used.
        """
        return rows_from_json(rows, self.spec, self.columns, self._pipeline.kinds)

    def self_check(self) -> list[str]:
        """Run the golden cases; each mismatch is a sentence, and no sentence means that all is well."""
        problems: list[str] = []
        for number, case in enumerate(self.package.golden(), 1):
            try:
                problems += [
                    f"Golden case {number}: {problem}" for problem in compare_case(case, self.answer(case))
                ]
            except MlxError as error:
                problems.append(f"Golden case {number} does not run: {error.message}")
        return problems

    def answer(self, case: GoldenCase) -> Answers:
        """The model's answers to a golden case's inputs: raw columns, or input tensors as they are."""
        rows = case.rows()
        if self.columns and set(rows) == {spec.name for spec in self.spec.inputs}:
            tensors = self.run(rows)
            return Answers(self.decode(tensors), tensors)
        return self.predict(rows, batch_size=max(1, row_count(rows)))


def _check_signature(spec: ModelSpec, session: Session) -> None:
    """The declared tensors must be the network's; a declared shape may be the narrower one."""
    for noun, declared, found in (
        ("input", spec.inputs, session.inputs),
        ("output", spec.outputs, session.outputs),
    ):
        real = {tensor.name: tensor for tensor in found}
        for tensor in declared:
            match = real.get(tensor.name)
            if match is None or not _fits(tensor, match, is_input=noun == "input"):
                has = printable(str(match) if match else ", ".join(real), 200)
                raise UsageError(
                    f"model.toml declares the {noun} {printable(str(tensor), 128)}, the network has {has}."
                )
    missing = {tensor.name for tensor in session.inputs} - {tensor.name for tensor in spec.inputs}
    if missing:
        raise UsageError(f"model.toml does not declare the input {printable(min(missing), 128)!r}.")


def _fits(declared: TensorSpec, found: TensorSpec, *, is_input: bool) -> bool:
    # ONNX Runtime infers dimensions of outputs that their file leaves open, but never those of inputs.
    return (
        declared.datatype == found.datatype
        and len(declared.shape) == len(found.shape)
        and all(
            want == have or have is None or (want is None and not is_input)
            for want, have in zip(declared.shape, found.shape, strict=True)
        )
    )


def _batches(columns: Columns, size: int) -> Iterator[tuple[int, dict[str, Array]]]:
    if size < 1:
        raise UsageError(f"A batch has at least one row, not {size}.")
    count = row_count(columns)
    for start in range(0, count, size):
        yield start, {name: column[start : start + size] for name, column in columns.items()}


def _taken(columns: Columns, rows: npt.NDArray[np.intp]) -> dict[str, Array]:
    return {name: column[rows] for name, column in columns.items()}


def filled(columns: Columns, size: int) -> Columns:
    """Columns filled up to `size` rows with their last row, for a network that takes no fewer."""
    lack = size - row_count(columns)
    if not lack:
        return columns
    return {
        name: np.concatenate([column, np.repeat(column[-1:], lack, axis=0)])
        for name, column in columns.items()
    }


def _joined(parts: list[Array]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    # Sequence outputs differ in length from batch to batch; each row keeps its own.
    return text_column([row for part in parts for row in part])
