import json

import yaml

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.mlmodel import mlmodel
from mlx_platform.inference.spec import ModelSpec


def test_the_signature_survives_yaml_and_json_whatever_the_names():
    spec = ModelSpec(
        "tensors", (TensorSpec("a: 'b' \"c\"\n#", "FP32", (None, 3)),), (TensorSpec("t", "BYTES", ()),)
    )

    document = yaml.safe_load(mlmodel(spec))

    assert json.loads(document["signature"]["inputs"]) == [
        {"name": "a: 'b' \"c\"\n#", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}
    ]
    assert json.loads(document["signature"]["outputs"])[0]["tensor-spec"] == {"dtype": "object", "shape": []}
    assert (
        document["flavors"]["onnx"]["data"] == document["flavors"]["python_function"]["data"] == "model.onnx"
    )
