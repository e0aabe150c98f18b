"""Vectors, such as embeddings, as few numbers: their norm and fixed random projections."""

import numpy as np

from mlx_platform.core.tensors import Array

PROJECTIONS = "projections"
_COUNT = 32
_SEED = 0
_CHUNK = 4096  # rows


def watch_vectors(name: str, column: Array) -> dict[str, Array]:
    """The norm, and `NAME.projections#0` and on: the vectors seen along 32 directions.

    By the theorem of Cramer and Wold two distributions are the same if they are so along every direction. The
    directions are drawn once and for all, so that nothing has to be kept of them.

    Args:
        name: of the column.
        column: floats [rows, ...].
    """
    flat = column.reshape(len(column), -1)
    drawn = np.random.default_rng(_SEED).standard_normal((flat.shape[1], _COUNT)) / np.sqrt(flat.shape[1])
    norms = np.empty(len(flat), dtype=np.float32)
    seen = np.empty((len(flat), _COUNT), dtype=np.float32)
    for start in range(0, len(flat), _CHUNK):
        rows = slice(start, start + _CHUNK)
        part = flat[rows].astype(np.float64)
        norms[rows] = np.sqrt(np.einsum("ij,ij->i", part, part))
        # Rounded: how a product is summed depends on the number of rows, and must not move one over an edge.
        seen[rows] = part @ drawn
    found: dict[str, Array] = {f"{name}.norm": norms}
    return found | {f"{name}.{PROJECTIONS}#{at}": seen[:, at] for at in range(_COUNT)}
