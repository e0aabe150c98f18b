import io
from typing import Any

import numpy as np
import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.readers.bodies import cell_of
from mlx_platform.traffic.readers.cells import encode_cells
from mlx_platform.traffic.readers.decode import decode_request, decode_response
from mlx_platform.traffic.readers.entry import Body
from mlx_platform.traffic.readers.signature import Signature

NAMED = Signature(columns=("a", "b"))
TENSOR = Signature(inputs=(TensorSpec("x", "FP32", (None, 2)),))
JSON = "application/json"


def inputs(content: Any, kind: str = JSON, signature: Signature = NAMED) -> dict[str, Any]:
    return {
        name: cells["data"] for name, cells in decode_request(Body(content, kind), signature).arrays.items()
    }


@pytest.mark.parametrize(
    "body",
    [
        '{"instances": [[1, "x"], [2, "y"]]}',
        '{"instances": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}',
        '{"inputs": {"a": [1, 2], "b": ["x", "y"]}}',
        '{"inputs": [[1, "x"], [2, "y"]]}',
        '{"dataframe_split": {"index": [0, 1], "columns": ["a", "b"], "data": [[1, "x"], [2, "y"]]}}',
        '{"dataframe_records": [{"a": 1, "b": "x"}, {"b": "y", "a": 2}]}',
        '[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]',
        '[[1, "x"], [2, "y"]]',
        '{"a": [1, 2], "b": ["x", "y"]}',
        """{"inputs": [{"name": "a", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]},
                       {"name": "b", "shape": [2, 1], "datatype": "BYTES", "data": ["x", "y"]}]}""",
    ],
)
def test_every_form_of_a_body_gives_the_same_columns(body: str) -> None:
    signature = Signature(columns=("a", "b"), inputs=(TensorSpec("x", "FP32", (None, 2)),))
    assert inputs(body, signature=signature) == {"a": [1, 2], "b": ["x", "y"]}


def test_csv_and_lines_of_json_give_them_as_well() -> None:
    assert inputs("1,x\n2,y\r\n", "text/csv; charset=utf-8") == {"a": [1, 2], "b": ["x", "y"]}
    assert inputs('{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n', "application/jsonlines") == {
        "a": [1, 2],
        "b": ["x", "y"],
    }


def test_rows_for_a_model_of_one_tensor_are_that_tensor() -> None:
    for content, kind in (("1,2.5\n3,4", "text/csv"), ('{"instances": [[1, 2.5], [3, 4]]}', JSON)):
        side = decode_request(Body(content, kind), TENSOR)
        assert side.arrays == {"x": {"datatype": "FP64", "shape": [2, 2], "data": [1.0, 2.5, 3.0, 4.0]}}


def test_an_array_of_numpy_is_read_and_one_of_objects_is_refused() -> None:
    def saved(array: Any) -> bytes:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    matrix = np.array([[1.5, 2], [3, 4]], dtype="<f4", order="F")
    assert inputs(saved(matrix), "application/x-npy") == {"a": [1.5, 3.0], "b": [2.0, 4.0]}
    assert inputs(saved(matrix), "application/x-npy", TENSOR) == {"x": [1.5, 2.0, 3.0, 4.0]}
    for wrong in (saved(np.array([{}])), saved(matrix)[:-1], b"\x93NUMPY\x01\x00"):
        with pytest.raises(UsageError):
            inputs(wrong, "application/x-npy")


def test_a_text_or_an_image_is_one_row_of_the_only_column() -> None:
    assert inputs("refund, please", "text/plain", Signature(columns=("text",))) == {
        "text": ["refund, please"]
    }
    assert inputs(b"\x89PNG\0", "image/png", Signature(columns=("image",))) == {"image": [b"\x89PNG\0"]}
    nested = '{"instances": [{"b64": "iVBORw=="}]}'
    assert inputs(nested, signature=Signature(columns=("image",))) == {"image": [b"\x89PNG"]}


def test_tokens_that_are_no_json_are_numbers_all_the_same() -> None:
    first, second = inputs('{"instances": [[NaN, 1], [-Infinity, 2]]}')["a"]
    assert np.isnan(first)
    assert second == -np.inf


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("41", 41),
        (" -7 ", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("", None),
        ("007", "007"),
        ("1_000", "1_000"),
        ("٣", "٣"),
        ("inf", np.inf),
        ("never", "never"),
        ("123456789012345678901", 123456789012345678901.0),
    ],
)
def test_a_cell_of_csv_is_a_number_only_where_it_is_written_as_one(text: str, value: Any) -> None:
    assert cell_of(text) == value
    assert type(cell_of(text)) is type(value)


def test_columns_get_the_narrowest_type_that_holds_every_cell() -> None:
    columns = ([1, 2], [1, 2.5], [True, False], [1, None], ["a", 1], [2**70], [[1, 2], [3, 4]], [[1], [2, 3]])
    found = [encode_cells(list(cells)) for cells in columns]
    types = ["INT64", "FP64", "BOOL", "BYTES", "BYTES", "BYTES", "INT64", "BYTES"]
    assert [cells["datatype"] for cells in found] == types
    assert found[6]["shape"] == [2, 2]


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "[]",
        '{"instances": []}',
        '{"instances": [[1, 2, 3]]}',
        '{"a": [1, 2], "b": [1]}',
        '{"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}}',
        '{"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1]}]}',
        '{"inputs": [{"name": "x", "shape": [1], "datatype": "BF16", "data": [1]}]}',
        '{"inputs": [{"name": "x", "shape": [], "datatype": "FP32", "data": [1]}]}',
        "[" * 100_000,
        "\udc80",
    ],
)
def test_bodies_that_do_not_fit_are_refused(body: str) -> None:
    with pytest.raises(UsageError):
        inputs(body)


def test_answers_are_named_by_the_models_task() -> None:
    def answers(content: str, **known: Any) -> dict[str, Any]:
        side = decode_response(Body(content, JSON), Signature(**known))
        return {name: cells["data"] for name, cells in side.arrays.items()}

    labels = {"task": "classification", "labels": ("no", "yes")}
    assert answers('{"predictions": [0.5, 1]}', task="regression") == {"value": [0.5, 1]}
    assert answers('{"scores": [[0.5], [1.5]]}', task="regression") == {"value": [0.5, 1.5]}
    assert answers('{"predictions": ["yes"]}', **labels) == {"label": ["yes"]}
    assert answers('{"predictions": [[0.2, 0.8]]}', **labels)["label"] == ["yes"]
    assert answers('{"predictions": [{"label": "no", "confidence": 0.9}]}', **labels) == {
        "label": ["no"],
        "confidence": [0.9],
    }
    assert answers('{"predictions": [0.8]}', **labels) == {"output": [0.8]}  # of which label is not said
    assert answers('{"scores": [1, 2], "model": "m"}') == {"scores": [1, 2]}
