"""A real Triton, with its dynamic batcher, in front of a Python function."""

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from session import open_session

MODEL, PORT = sys.argv[1], int(sys.argv[2])
session = open_session(MODEL)
inputs = [
    Tensor(
        name=tensor.name,
        dtype=np.float32 if "float" in tensor.type else np.int64,
        shape=tuple(-1 if isinstance(dim, str) else dim for dim in tensor.shape[1:]),
    )
    for tensor in session.get_inputs()
]
outputs = [
    Tensor(name=tensor.name, dtype=np.float32, shape=tuple(tensor.shape[1:]))
    for tensor in session.get_outputs()
]


@batch
def infer(**feeds):
    return session.run(None, feeds)


config = TritonConfig(http_port=PORT, grpc_port=PORT + 1, metrics_port=PORT + 2, http_address="127.0.0.1")
with Triton(config=config) as triton:
    batcher = DynamicBatcher(max_queue_delay_microseconds=5000)
    triton.bind(
        "m", infer, inputs, outputs, config=ModelConfig(batching=True, max_batch_size=32, batcher=batcher)
    )
    triton.serve()
