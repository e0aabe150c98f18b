"""Golden cases: made from a signature with fixed seeds, and compared with what a model answers."""

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from mlx_platform.core.tensors import Array, TensorSpec
from mlx_platform.core.text import printable
from mlx_platform.inference.cases import GoldenCase
from mlx_platform.inference.rows import column_kinds
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.table import CategoriesStep

SIZES = (8, 32, 224)  # what a dimension that varies is tried with
_ROWS = (1, 4)  # rows of the cases that are made


class Answered(Protocol):
    """What `Model.predict` gives back."""

    @property
    def columns(self) -> Mapping[str, Array]: ...
    @property
    def tensors(self) -> Mapping[str, Array]: ...


def compare_case(case: GoldenCase, answers: Answered) -> list[str]:
    """Where the answers differ from the case's expectation, as sentences.

    Numbers may differ by atol + rtol * |expected|, elementwise; everything else must be equal.
    """
    problems = []
    for name, want in case.expected().items():
        # An output and an answer may share a name; what the model itself said in generated cases are outputs.
        first, second = (answers.columns, answers.tensors)[:: -1 if case.generated else 1]
        have = first.get(name, second.get(name))
        shown = printable(name, 80)
        if have is None:
            problems.append(f"the model answers no {shown!r}.")
        elif have.shape != want.shape and have.size != want.size:
            problems.append(f"{shown!r} has the shape {list(have.shape)}, not {list(want.shape)}.")
        elif want.dtype.kind == "f" or have.dtype.kind == "f":
            problems += _compare_numbers(have.reshape(want.shape), want, case, shown)
        else:
            pairs = zip(_texts(have), _texts(want), strict=True)
            problems += [f"{shown!r} is {one!r}, not {other!r}." for one, other in pairs if one != other][:1]
    return problems


def _compare_numbers(have: Array, want: Array, case: GoldenCase, name: str) -> list[str]:
    have64, want64 = have.astype(np.float64), want.astype(np.float64)
    close = np.isclose(have64, want64, rtol=case.rtol, atol=case.atol, equal_nan=True)
    if close.all():
        return []
    worst = np.unravel_index(int(np.argmax(np.where(close, 0, np.abs(have64 - want64)))), want64.shape)
    return [
        f"{name!r} is {have64[worst]:.6g}, not {want64[worst]:.6g} (rtol {case.rtol:g}, atol {case.atol:g})."
    ]


def _texts(array: Array) -> list[str]:
    # A label is the same whether it is written as 3 or as "3".
    cells = array.reshape(-1).tolist()
    return [cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell) for cell in cells]


def seeded_rows(spec: ModelSpec, size: int) -> Iterator[dict[str, Array]]:
    """Inputs for generated cases: floats are normal, integers 0 or 1, masks 1; the same ones every time.

    Yields nothing where an input is text or an image, for which no sensible value can be made.
    """
    kinds = column_kinds(spec)
    categories = {
        next(iter(step.takes)): step for step in spec.pre_steps() if isinstance(step, CategoriesStep)
    }
    for seed, rows in enumerate((spec.fixed_rows,) if spec.fixed_rows else _ROWS):
        generator = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        for name, kind in kinds.items():
            if isinstance(kind, TensorSpec):
                column = _seeded(generator, kind, rows, size)
            elif kind == "number":
                column = generator.standard_normal(rows)
            elif kind == "category" and name in categories and categories[name].values:
                values = categories[name].values
                column = np.empty(rows, dtype=object)
                column[:] = [values[index] for index in generator.integers(0, len(values), rows)]
            else:
                return
            if column is None:
                return
            made[name] = column
        yield made


def _seeded(generator: np.random.Generator, spec: TensorSpec, rows: int, size: int) -> Array | None:
    if spec.datatype == "BYTES" or not spec.shape:
        return None
    shape = (rows, *(size if dim is None else dim for dim in spec.shape[1:]))
    if spec.numpy_type.kind == "f":
        return generator.standard_normal(shape).astype(spec.numpy_type)
    if "mask" in spec.name:
        return np.ones(shape, dtype=spec.numpy_type)
    return generator.integers(0, 2, shape).astype(spec.numpy_type)
