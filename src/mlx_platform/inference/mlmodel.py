"""The `MLmodel` file, by which MLflow's own loaders read a package as well.

Written by hand: MLflow would store the network anew, in other bytes, with times and random names.
"""

import json

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.package import MODEL
from mlx_platform.inference.spec import ModelSpec


def mlmodel(spec: ModelSpec) -> str:
    """The file for `mlflow.onnx.load_model` and `mlflow.pyfunc.load_model`; equal specs give equal text.

    The pyfunc takes input tensors, not raw columns: MLflow knows nothing of the pipeline.
    """
    return "\n".join(
        [
            "flavors:",
            "  onnx:",
            f"    data: {MODEL}",
            "    providers:",
            "    - CPUExecutionProvider",
            "  python_function:",
            f"    data: {MODEL}",
            "    loader_module: mlflow.onnx",
            "signature:",
            f"  inputs: {_tensors(spec.inputs)}",
            f"  outputs: {_tensors(spec.outputs)}",
            "",
        ]
    )


def _tensors(tensors: tuple[TensorSpec, ...]) -> str:
    schema = [
        {
            "name": tensor.name,
            "type": "tensor",
            "tensor-spec": {
                "dtype": str(tensor.numpy_type),
                "shape": [-1 if dim is None else dim for dim in tensor.shape],
            },
        }
        for tensor in tensors
    ]
    # JSON in a JSON string: YAML reads the outer one, MLflow the inner.
    return json.dumps(json.dumps(schema))
