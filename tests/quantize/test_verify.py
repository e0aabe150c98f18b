from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from mlx_platform.core.errors import UndecidedError
from mlx_platform.quantize.verify import verify

ROWS = [{"x": np.ones((2, 16), np.float32)}]


def test_a_model_in_which_nothing_is_quantized_is_refused(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UndecidedError, match="Nothing in the model was quantized"):
        verify(dense, dense, ROWS, tmp_path)


def test_a_model_with_another_output_is_refused(dense: Path, tmp_path: Path) -> None:
    model = onnx.load(dense)
    model.graph.node[0].output[0] = model.graph.output[0].name = "z"
    other = tmp_path / "other.onnx"
    onnx.save(model, other)

    with pytest.raises(UndecidedError, match="signature"):
        verify(dense, other, ROWS, tmp_path)


def test_an_output_that_is_no_longer_finite_is_refused(dense: Path, tmp_path: Path) -> None:
    model = onnx.load(dense)
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(helper.make_node("Sub", ["h", "h"], ["zero"]))
    model.graph.node.append(helper.make_node("Div", ["h", "zero"], ["y"]))
    other = tmp_path / "other.onnx"
    onnx.save(model, other)

    with pytest.raises(UndecidedError, match="NaN or infinite"):
        verify(dense, other, ROWS, tmp_path)


def test_a_file_that_does_not_load_is_refused(dense: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(dense.read_bytes()[:100])

    with pytest.raises(UndecidedError, match="cannot load"):
        verify(dense, broken, ROWS, tmp_path)


def test_a_model_that_was_not_run_is_refused(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UndecidedError, match="no input to run"):
        verify(dense, dense, [], tmp_path)
