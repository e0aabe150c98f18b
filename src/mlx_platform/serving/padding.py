"""Sequences of different lengths in one run: the shorter ones are filled up, and their outputs cut again.

That is done only for models that were seen to give the same answers to a row alone and filled up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_platform.core.tensors import Array, Tensors, TensorSpec
from mlx_platform.inference.spec import ModelSpec

_AXIS = 1  # along which a sequence runs, behind the rows
_SMALLEST_BUCKET = 8


@dataclass(frozen=True, slots=True)
class Padding:
    """How the sequences of a model are filled up.

    Attributes:
        fill: what with, by input; these inputs [rows, length, ...] are as long as each other.
        axes: the axes that are as long as the inputs, by output.
    """

    fill: Mapping[str, float]
    axes: Mapping[str, tuple[int, ...]]

    def length(self, feeds: Tensors) -> int:
        """How long the sequences of a request are; 0 where its inputs do not agree."""
        found = 0
        for name in self.fill:
            length: int = feeds[name].shape[_AXIS]
            if found and length != found:
                return 0
            found = length
        return found

    def join(self, name: str, arrays: Sequence[Array], length: int) -> Array:
        """The arrays of one input as one [rows, length, ...]."""
        first = arrays[0]
        rows = sum(len(array) for array in arrays)
        joined = np.full((rows, length, *first.shape[_AXIS + 1 :]), self.fill[name], first.dtype)
        start = 0
        for array in arrays:
            joined[start : start + len(array), : array.shape[_AXIS]] = array
            start += len(array)
        return joined

    def cut(self, name: str, array: Array, length: int) -> Array:
        """The part of an output that belongs to sequences of a length."""
        for axis in self.axes.get(name, ()):
            array = array[(slice(None),) * axis + (slice(length),)]
        return array


def bucket(length: int) -> int:
    """The longest sequence that may share a run with one of this length: 8, 12, 16, 24, 32, 48 and so on.

    Each is at most half as long again as the one before: on a CPU the work that more filling makes is worth
    more than what a larger batch saves.
    """
    if length <= _SMALLEST_BUCKET:
        return _SMALLEST_BUCKET
    double: int = 1 << (length - 1).bit_length()
    between = double * 3 // 4
    return between if length <= between else double


def candidate(spec: ModelSpec) -> dict[str, float]:
    """What sequences might be filled up with, by input; {} where the model says nothing about it.

    A package declares it, in its `padding` or by a step that fills up itself. Of others a mask says where the
    sequence ends: what stands behind it should not matter.
    """
    fill = dict(spec.padding) or _by_tokenizer(spec)
    if not fill:
        free = [tensor for tensor in spec.inputs if _is_free(tensor)]
        plain = all(tensor.numpy_type.kind in "iub" for tensor in free)
        if plain and any("mask" in tensor.name.lower() for tensor in free):
            fill = {tensor.name: 0 for tensor in free}
    inputs = {tensor.name: tensor for tensor in spec.inputs}
    return fill if all(_is_free(inputs[name]) for name in fill) else {}


def _by_tokenizer(spec: ModelSpec) -> dict[str, float]:
    names = {tensor.name for tensor in spec.inputs}
    fill: dict[str, float] = {}
    for step in spec.pre:
        if step.kind == "tokenize":
            made = {
                step.options.get("ids", "input_ids"): step.options.get("pad_id", 0),
                step.options.get("mask", "attention_mask"): 0,
                step.options.get("types", "token_type_ids"): 0,
            }
            fill |= {name: value for name, value in made.items() if name in names}
    return fill


def _is_free(tensor: TensorSpec) -> bool:
    """Whether its second dimension varies, and none behind it."""
    return len(tensor.shape) > _AXIS and tensor.shape[_AXIS] is None and None not in tensor.shape[_AXIS + 1 :]


def following(short: Tensors, long: Tensors, lengths: tuple[int, int]) -> dict[str, tuple[int, ...]] | None:
    """The axes of outputs that follow the length of the inputs; None where one does so in another way.

    Args:
        short: the outputs of a short row.
        long: those of a long one.
        lengths: how long these rows were.
    """
    axes: dict[str, tuple[int, ...]] = {}
    for name, one in short.items():
        pairs = list(zip(one.shape, long[name].shape, strict=False))
        differing = tuple(axis for axis, pair in enumerate(pairs) if pair[0] != pair[1])
        if one.ndim != long[name].ndim or any(pairs[axis] != lengths for axis in differing):
            return None
        if differing:
            axes[name] = differing
    return axes


def stretched(row: Tensors, names: Mapping[str, float], length: int) -> dict[str, Array]:
    """A row whose named inputs end at a length, or begin again until they have it."""
    return {
        name: np.take(array, np.arange(length) % array.shape[_AXIS], axis=_AXIS) if name in names else array
        for name, array in row.items()
    }
