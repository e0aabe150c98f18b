"""Texts as vectors, by a model of the registry, and the proof that it tells texts apart."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from mlx_platform.core.errors import GateFailedError, MlxError, UsageError
from mlx_platform.core.tensors import TensorSpec, text_column
from mlx_platform.core.text import listed, printable
from mlx_platform.inference.model import Model
from mlx_platform.serving.cache.meanings import Vector

TOGETHER = 32
"""Texts of one run."""

UNRELATED = (
    "The invoice of last month was paid twice.",
    "How do I bake bread without yeast?",
    "Heavy snow has closed the mountain road.",
    "My password does not work on the new phone.",
)
"""Texts that no two of which mean the same to anybody."""


class Embedder:
    """Turns texts into vectors of length 1; safe to use from many threads.

    Args:
        model: takes one text column, and gives one vector per row or per token.

    Raises:
        UsageError: it takes or gives something else.
    """

    def __init__(self, model: Model) -> None:
        self.name = f"{model.name}/{model.version}"
        self._model = model
        if len(model.columns) != 1:
            raise UsageError(
                f"The embedding model {printable(self.name)} must take one text column, "
                f"not {listed(model.columns, 8) or 'tensors'}."
            )
        self._column = model.columns[0]
        self._output = _vector_output(model)

    def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """A vector for each text; None for one that the model does not take, such as one that is too long."""
        if len(texts) > TOGETHER:
            starts = range(0, len(texts), TOGETHER)
            return [vector for start in starts for vector in self.embed(texts[start : start + TOGETHER])]
        try:
            return list(self._vectors(texts))
        except MlxError:
            if len(texts) == 1:
                return [None]
        return [vector for text in texts for vector in self.embed([text])]

    def check(self, similarity: float, texts: Mapping[str, Hashable]) -> None:
        """Make sure that texts which do not mean the same are further apart than what counts as alike.

        Args:
            similarity: the cosine from which two texts count as alike.
            texts: each with what it means; those of different meaning are compared.

        Raises:
            GateFailedError: they are not, so that questions would get the answers to others.
        """
        names, meanings = tuple(texts), tuple(texts.values())
        vectors = self.embed(names)
        known = [index for index, vector in enumerate(vectors) if vector is not None]
        if not known and names:
            raise GateFailedError(
                f"The embedding model {printable(self.name)} gives no vectors for plain texts."
            )
        for place, first in enumerate(known):
            for second in known[:place]:
                closeness = float(np.dot(vectors[first], vectors[second]))  # type: ignore[arg-type]  # known
                if meanings[first] != meanings[second] and not closeness < similarity:
                    raise GateFailedError(
                        f"The embedding model {printable(self.name)} finds texts alike that are not "
                        f"({closeness:.3f}, where {similarity:g} counts as the same): "
                        f"{printable(names[second], 80)!r} and {printable(names[first], 80)!r}.",
                        hint="Choose another model or a higher serving.semantic_cache.similarity.",
                    )

    def _vectors(self, texts: Sequence[str]) -> "Vector":
        feeds = self._model.encode({self._column: text_column(list(texts))})
        found = self._model.run(feeds, (self._output,))[self._output].astype(np.float32)
        if found.ndim == 3:
            # One vector per token: their mean, without the padding where the model knows of it.
            mask = feeds.get("attention_mask", np.ones(found.shape[:2]))[:, :, None].astype(np.float32)
            found = (found * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        if found.shape[0] != len(texts) or not np.isfinite(lengths).all() or not lengths.all():
            raise UsageError("The embedding model does not give a direction for each text.")
        vectors: Vector = found / lengths
        return vectors


def _vector_output(model: Model) -> str:
    """The output with the vectors: one per row if there is such an output, else one per token."""
    floats = [spec for spec in model.session.outputs if spec.datatype in {"FP16", "FP32", "FP64"}]
    for rank in (2, 3):
        fitting = [spec for spec in floats if len(spec.shape) == rank]
        if fitting:
            return fitting[0].name
    raise UsageError(
        f"The embedding model {printable(model.name)} gives no vectors, but {_shown(model.session.outputs)}."
    )


def _shown(specs: Sequence[TensorSpec]) -> str:
    return printable(", ".join(map(str, specs)), 200)
