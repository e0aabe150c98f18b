import orjson
import pytest

from mlx_platform.core.tensors import NUMPY_TYPES, TensorSpec
from mlx_platform.serving.metadata import describe_config, describe_model, example_request
from mlx_platform.serving.protocol_v2 import parse_infer
from mlx_platform.serving.signature import Signature

X = TensorSpec("x", "FP32", (None, 3))
Y = TensorSpec("y", "BYTES", (None,))


def one(datatype: str, *shape: int | None) -> Signature:
    return Signature.of([TensorSpec("x", datatype, shape)], [Y])


def test_metadata_show_a_dimension_that_varies_as_minus_one():
    described = describe_model("m", "3", Signature.of([X], [Y]))
    assert described["versions"] == ["3"]
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]


@pytest.mark.parametrize("datatype", [name for name in NUMPY_TYPES if name != "FP16"])
def test_the_example_on_the_page_is_a_request_that_works(datatype):
    signature = one(datatype, None, 2)
    example = example_request(signature)
    assert parse_infer(orjson.dumps(example), None, signature).feeds["x"].shape == (1, 2)


def test_an_example_that_is_too_long_to_show_is_not_made():
    assert example_request(one("FP32", None, 3, 224, 224)) is None


def test_the_configuration_of_a_batching_model_has_the_dimensions_of_a_row():
    config = describe_config("m", "3", Signature.of([X], [Y]), 16)
    assert config["max_batch_size"] == 16
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_STRING", "dims": []}]
    assert config["version_policy"] == {"specific": {"versions": [3]}}


def test_the_configuration_of_a_model_that_does_not_batch_has_whole_shapes():
    config = describe_config("m", "x", one("INT64", 2, None), 16)
    assert config["max_batch_size"] == 0
    assert config["input"][0]["dims"] == [2, -1]
    assert "dynamic_batching" not in config
    assert "version_policy" not in config
