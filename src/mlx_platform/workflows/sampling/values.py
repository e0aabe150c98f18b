"""Cells of logged rows as JSON has them, and without what is nobody's business."""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlx_platform.core.tensors import Array
from mlx_platform.serving.masking import MASKED, is_personal, mask_cell

_MAGIC = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def cell_of(column: Array, row: int) -> Any:
    """A cell: a number, text, a list of numbers, or bytes as a data URI; null for what is no number."""
    return _plain(column[row])


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_plain(inner) for inner in value.tolist()]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        kind = next((kind for magic, kind in _MAGIC.items() if value.startswith(magic)), None)
        return f"data:{kind or 'application/octet-stream'};base64,{base64.b64encode(value).decode()}"
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def masked(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The row with personal data masked, and the columns in which something was."""
    found = {name: MASKED if is_personal(name) else _masked(value) for name, value in inputs.items()}
    return found, tuple(name for name, value in inputs.items() if found[name] != value)


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [_masked(inner) for inner in value]
    if isinstance(value, str) and value.startswith("data:"):
        return value  # a picture: what it shows cannot be told here
    return mask_cell(value)
