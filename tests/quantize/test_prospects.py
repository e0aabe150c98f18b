from pathlib import Path

import onnx
import pytest

from mlx_platform.quantize.inspect import inspect, inspect_file
from mlx_platform.quantize.prospects import describe, outlook, prospects


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


def test_what_was_found_is_told(dense: Path, tmp_path: Path) -> None:
    path = tmp_path / "beside.onnx"
    onnx.save_model(
        onnx.load(dense), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )

    assert dict(describe(inspect_file(path))) == {
        "opsets": "ai.onnx 17",
        "operators": "MatMul x 1",
        "outside the ONNX standard": "none",
        "types of weights": "FLOAT x 1",
        "weights in other files": "1",
        "nodes without a name": "1",
        "If, Loop and Scan": "0, with 0 layers inside",
    }


def test_the_outlook_ends_with_the_processor(convolutional: Path) -> None:
    *methods, processor = outlook(inspect(onnx.load(convolutional)))

    assert [line.split(":")[0] for line in methods] == ["static", "dynamic", "fp16", "int4"]
    assert processor.startswith("This processor")


def test_trees_have_no_prospects_and_no_need_of_a_processor(forest: Path) -> None:
    assert outlook(inspect(onnx.load(forest))) == tuple(
        f"{method}: takes nothing." for method in ("static", "dynamic", "fp16", "int4")
    )
