"""Raw inputs as named scalars, which is what a distribution can be compared of."""

from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array, Columns, text_column
from mlx_platform.inference.rows import column_kinds
from mlx_platform.inference.spec import ModelSpec
from mlx_platform.inference.steps.image import decode_image, opencv
from mlx_platform.inference.steps.text import as_texts

_WIDTH_CAP = 4096  # columns of one input that are watched one by one


def extract(spec: ModelSpec, rows: Columns) -> dict[str, Array]:
    """See `model.features`."""
    kinds = column_kinds(spec)
    named = spec.columns or tuple(rows)
    found: dict[str, Array] = {}
    for name in named:
        if name not in rows:
            continue
        kind = kinds.get(name)
        column = rows[name]
        if kind == "text":
            found |= _text(name, as_texts(column, name, spec.limits.max_text_chars))
        elif kind == "image":
            found |= _image(name, column, spec.limits.max_image_bytes)
        else:
            found |= _tensor(name, column)
    return found


def _text(name: str, texts: list[str]) -> dict[str, Array]:
    return {
        f"{name}.chars": np.array([len(text) for text in texts], dtype=np.int64),
        f"{name}.words": np.array([len(text.split()) for text in texts], dtype=np.int64),
    }


def _image(name: str, column: Array, max_bytes: int) -> dict[str, Array]:
    sizes, brightness = [], []
    for row, cell in enumerate(column):
        image = decode_image(cell, name, row, max_bytes)
        grey = opencv().cvtColor(np.ascontiguousarray(image), opencv().COLOR_BGR2GRAY)
        sizes.append(image.shape[:2])
        brightness.append(float(grey.mean()))
    return {
        f"{name}.width": np.array([width for _, width in sizes], dtype=np.int64),
        f"{name}.height": np.array([height for height, _ in sizes], dtype=np.int64),
        f"{name}.brightness": np.array(brightness),
    }


def _tensor(name: str, column: Array) -> dict[str, Array]:
    if column.ndim == 1 and column.dtype.kind == "O" and _is_text(column[0] if len(column) else ""):
        return {
            name: text_column(
                [cell.decode(errors="replace") if isinstance(cell, bytes) else cell for cell in column]
            )
        }
    if column.ndim == 1 and column.dtype.kind == "O" and isinstance(column[0], np.ndarray | list):
        arrays = [np.asarray(cell, dtype=np.float64) for cell in column]
        return {
            f"{name}.length": np.array([array.size for array in arrays], dtype=np.int64),
            f"{name}.mean": np.array([array.mean() if array.size else np.nan for array in arrays]),
        }
    if column.ndim == 1:
        return {name: column}
    if column.ndim == 2 and column.shape[1] == 1:
        return {name: column[:, 0]}
    if column.ndim == 2 and column.shape[1] <= _WIDTH_CAP:
        return {f"{name}[{index}]": column[:, index] for index in range(column.shape[1])}
    flat = column.reshape(len(column), -1)
    return {f"{name}.mean": flat.mean(axis=1), f"{name}.std": flat.std(axis=1)}


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str | bytes) or cell is None
