from pathlib import Path

import onnx
import pytest

from mlx_platform.quantize.inspect import inspect
from mlx_platform.quantize.prospects import outlook, prospects


def test_each_method_tells_how_much_of_the_model_it_takes(convolutional: Path) -> None:
    found = {each.method: each for each in prospects(inspect(onnx.load(convolutional)))}

    convolutions, head = 16 * 9 + 16 * 16 * 9, 160
    total = convolutions + head + 16 + 16 + 10
    assert found["static"].layers == 3
    assert found["static"].share == pytest.approx((convolutions + head) / total)
    assert found["static"].size_ratio == pytest.approx(1 - 0.75 * found["static"].share)
    assert (found["dynamic"].layers, found["int4"].layers) == (1, 1)
    assert found["dynamic"].share == pytest.approx(head / total)
    assert found["fp16"].size_ratio == pytest.approx(1 - 0.5 * found["static"].share)


def test_the_outlook_ends_with_the_processor(convolutional: Path) -> None:
    *methods, processor = outlook(inspect(onnx.load(convolutional)))

    assert [line.split(":")[0] for line in methods] == ["static", "dynamic", "fp16", "int4"]
    assert processor.startswith("This processor")


def test_trees_have_no_prospects_and_no_need_of_a_processor(forest: Path) -> None:
    assert outlook(inspect(onnx.load(forest))) == tuple(
        f"{method}: takes nothing." for method in ("static", "dynamic", "fp16", "int4")
    )
