"""What a served model takes and gives, prepared once so that each request is checked quickly."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlx_platform.core.tensors import Tensors, TensorSpec
from mlx_platform.serving.json_tensors import InputReader


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs by name.

    `batched` says that the first dimension of every input and output varies, so that it may be the row;
    only then are requests joined into one run, or a long one split over several.
    """

    inputs: Mapping[str, TensorSpec]
    readers: Mapping[str, InputReader]
    outputs: Mapping[str, TensorSpec]
    batched: bool

    @classmethod
    def of(cls, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> "Signature":
        takes = {spec.name: spec for spec in inputs}
        gives = {spec.name: spec for spec in outputs}
        specs = (*takes.values(), *gives.values())
        readers = {name: InputReader(spec) for name, spec in takes.items()}
        return cls(takes, readers, gives, all(spec.shape[:1] == (None,) for spec in specs))

    def rows(self, feeds: Tensors) -> int:
        """The rows of a request: the longest first dimension; an input without one counts as one row."""
        return max((len(array) if array.ndim else 1 for array in feeds.values()), default=1)
