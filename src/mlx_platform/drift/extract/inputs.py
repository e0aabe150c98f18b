"""A model's raw inputs as what drift watches: named values, one for each row."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, Columns, text_column
from mlx_platform.drift.extract.images import watch_images
from mlx_platform.drift.extract.table import as_category, as_number
from mlx_platform.drift.extract.text import lengths, read_texts, scripts, tokens
from mlx_platform.drift.extract.vectors import watch_vectors
from mlx_platform.drift.extract.vocabulary import Vocabulary, VocabularyDraft
from mlx_platform.drift.values import Column
from mlx_platform.inference.rows import column_kinds
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.step import Step
from mlx_platform.inference.steps.text import CleanStep, TokenizeStep

_WIDTH_CAP = 4096  # columns of one input that are watched one by one
_VECTOR_WIDTH = 128  # from which on an input of floats is taken to be a vector as well


class InputFeatures:
    """Watches the inputs of one model.

    Numbers and categories are themselves, as the model declares them. Texts, images and vectors are watched
    through what their modules measure. An input of [n, k] without column names gives `INPUT[0]` to
    `INPUT[k-1]`; larger tensors give `.mean` and `.std`.
    """

    def __init__(
        self, spec: ModelSpec, root: Path | None, vocabularies: Mapping[str, Vocabulary] | None = None
    ) -> None:
        """Load what is needed to look at the inputs.

        Args:
            spec: of the model.
            root: of its package, where the tokenizer lies; None leaves tokens out.
            vocabularies: of the baseline's texts, by column.

        Raises:
            UsageError: a tokenizer cannot be read.
        """
        self._spec = spec
        self._kinds = column_kinds(spec)
        self._vocabularies = vocabularies or {}
        self._steps: tuple[Step, ...] = spec.pre_steps() if root is not None else ()
        self._tokenizers: dict[str, Any] = {}
        for step in self._steps:
            if isinstance(step, TokenizeStep) and root is not None:
                self._tokenizers[step.column] = step.whole_texts(root)

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts."""
        return tuple(name for name in self._spec.columns if self._kinds.get(name) == "text")

    def __call__(self, rows: Columns) -> dict[str, Column]:
        """The features [rows] of raw columns; columns that the model does not name are ignored."""
        found: dict[str, Column] = {}
        for name in self._spec.columns or tuple(rows):
            if name not in rows:
                continue
            kind, column = self._kinds.get(name), rows[name]
            if kind == "text":
                found |= self._text(name, column)
            elif kind == "image":
                found |= watch_images(name, column, self._spec.limits.max_image_bytes)
            elif kind == "category" and column.ndim == 1:
                found[name] = as_category(column)
            elif kind == "number" and column.ndim == 1:
                found[name] = as_number(column)
            else:
                found |= _tensor(name, column)
        return found

    def _text(self, name: str, column: Array) -> dict[str, Array]:
        texts = read_texts(column)
        found = lengths(name, texts) | scripts(name, texts)
        if name in self._vocabularies:
            found[f"{name}.oov"] = self._vocabularies[name].unknown(texts)
        batch = {name: text_column([text or "" for text in texts])}
        for step in self._steps:
            if isinstance(step, CleanStep) and name in step.takes:
                batch = step(batch)
            elif isinstance(step, TokenizeStep) and name == step.column:
                cleaned = [
                    None if text is None else cell
                    for text, cell in zip(texts, batch[name].tolist(), strict=True)
                ]
                found |= tokens(name, cleaned, self._tokenizers[name], step.max_length)
        return found


def _tensor(name: str, column: Array) -> dict[str, Array]:
    if column.ndim == 1 and column.dtype.kind == "O":
        return _cells(name, column)
    if column.ndim == 1:
        return {name: column}
    flat = column.reshape(len(column), -1)
    if column.ndim == 2 and flat.shape[1] == 1:
        return {name: flat[:, 0]}
    found: dict[str, Array] = {}
    if column.dtype.kind == "f" and flat.shape[1] >= _VECTOR_WIDTH:
        found = watch_vectors(name, column)
    if column.ndim == 2 and flat.shape[1] <= _WIDTH_CAP:
        return {f"{name}[{index}]": flat[:, index] for index in range(flat.shape[1])} | found
    return {f"{name}.mean": flat.mean(axis=1), f"{name}.std": flat.std(axis=1)} | found


def _cells(name: str, column: Array) -> dict[str, Array]:
    """Objects: texts, or arrays of different lengths."""
    first = column[0] if len(column) else ""
    if isinstance(first, np.ndarray | list):
        arrays = [np.asarray(cell, dtype=np.float64) for cell in column]
        return {
            f"{name}.length": np.array([array.size for array in arrays], dtype=np.int64),
            f"{name}.mean": np.array([array.mean() if array.size else np.nan for array in arrays]),
        }
    if isinstance(first, str | bytes) or first is None:
        return {
            name: text_column(
                [cell.decode(errors="replace") if isinstance(cell, bytes) else cell for cell in column]
            )
        }
    return {name: column}


@dataclass(frozen=True, slots=True)
class Learnt:
    """Vocabularies by column of texts: for texts to come, and for those of the baseline itself."""

    known: Mapping[str, Vocabulary]
    own: Mapping[str, Vocabulary]


def learn(look: InputFeatures, batches: Iterable[Columns]) -> Learnt:
    """What the texts of a baseline say; batches are not read where there are none.

    Args:
        look: of the model.
        batches: the raw columns, piece by piece.
    """
    drafts = {name: VocabularyDraft() for name in look.texts}
    for rows in batches if drafts else ():
        for name in drafts.keys() & rows.keys():
            drafts[name].add(read_texts(rows[name]))
    found = {name: draft.vocabularies() for name, draft in drafts.items()}
    return Learnt(
        known={name: known for name, (known, _) in found.items()},
        own={name: own for name, (_, own) in found.items()},
    )
