"""Whether one version may take the place of another without any of its clients noticing."""

from collections.abc import Iterator, Sequence

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.core.text import listed, printable
from mlx_platform.inference.rows import column_kinds
from mlx_platform.inference.spec import ModelSpec


def differences(before: ModelSpec, after: ModelSpec) -> tuple[str, ...]:
    """What clients of one version could not do with another, in words; () when they would not notice.

    The other may take more than the one, such as any length where the one fixes it, need fewer columns, and
    give further outputs.
    """
    return tuple(_differences(before, after))


def _differences(before: ModelSpec, after: ModelSpec) -> Iterator[str]:
    if before.task != after.task:
        yield f"it does {after.task} instead of {before.task}"
    if before.labels != after.labels:
        yield "it has other labels"
    yield from _columns(before, after)
    yield from _tensors("input", before.inputs, after.inputs)
    yield from _tensors("output", before.outputs, after.outputs)


def _columns(before: ModelSpec, after: ModelSpec) -> Iterator[str]:
    had, wants = column_kinds(before), column_kinds(after)
    missing = [name for name in after.columns if name not in before.columns]
    if bool(before.columns) != bool(after.columns):
        yield "it takes its columns in another way"
    elif missing:
        yield f"it needs the columns {listed([printable(name, 80) for name in missing])}"
    for name in after.columns:
        # An input tensor is compared as such.
        if name in had and isinstance(had[name], str) and had[name] != wants[name]:
            yield f"the column {printable(name, 80)} holds something else"


def _tensors(side: str, before: Sequence[TensorSpec], after: Sequence[TensorSpec]) -> Iterator[str]:
    there = {tensor.name: tensor for tensor in after}
    for old in before:
        new = there.pop(old.name, None)
        if new is None:
            yield f"it has no {side} {printable(old.name, 80)}"
        elif new.datatype != old.datatype or not _fits(side, old.shape, new.shape):
            yield f"its {side} {printable(str(new), 120)} was {printable(str(old), 120)}"
    if side == "input" and there:
        yield f"it needs the inputs {listed([printable(name, 80) for name in there])}"


def _fits(side: str, old: Sequence[int | None], new: Sequence[int | None]) -> bool:
    """An input may become wider, an output narrower."""
    if len(old) != len(new):
        return False
    wide, narrow = (new, old) if side == "input" else (old, new)
    return all(most is None or most == least for most, least in zip(wide, narrow, strict=True))
