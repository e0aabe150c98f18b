"""The node tests of ONNX, through HTTP: the same outputs as ONNX Runtime gives for the same bytes."""

import asyncio
import http.client
import importlib
import warnings
import zlib
from pathlib import Path
from urllib.parse import quote

import numpy as np
import onnxruntime
import orjson
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case import node

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.core.tensors import NUMPY_TYPES, datatype_of
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import MODEL, SPEC, open_package, seal
from mlx_platform.inference.spec import spec_from_network, write_spec
from mlx_platform.serving.app import App
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.http_exchange import RequestIds
from mlx_platform.serving.http_protocol import HttpLimits
from mlx_platform.serving.listener import Listener, bind
from mlx_platform.serving.metrics import Metrics
from mlx_platform.serving.rollout.feedback_desk import FeedbackDesk
from mlx_platform.serving.rollout.observer import Arms
from mlx_platform.serving.router import Router
from mlx_platform.serving.served import Served

_OPERATORS = (
    "abs add and_ argmax batch_normalization cast concat constantofshape conv cumsum det einsum equal "
    "gather gathernd gemm greater gru identity isnan layernormalization lstm matmul mod not_ onehot pad "
    "reducemean reshape scatternd shape slice softmax squeeze string_concat string_split "
    "stringnormalizer sum tfidfvectorizer topk transpose unique unsqueeze where"
)
_MANY = {"cast", "argmax", "reduce", "layer", "softmax", "onehot", "slice", "mod"}
_MOST_VALUES = 5_000
_KNOWN = {np.dtype(kind) for kind in NUMPY_TYPES.values()}


@pytest.fixture(scope="module")
def cases():
    """The tests of some operators; those of all take longer to make than to run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the generators of the data
        for operator in _OPERATORS.split():
            importlib.import_module(f"{node.__name__}.{operator}")
    return [case for case in node._NodeTestCases if case.data_sets and _is_chosen(case.name)]


def _is_chosen(name):
    operator = name.removeprefix("test_").partition("_")[0]
    return "expanded" not in name and (operator not in _MANY or zlib.crc32(name.encode()) % 4 == 0)


def feeds_of(case):
    """The inputs by name; None when one is no tensor that the protocol carries, or the server takes."""
    feeds = {}
    for value, given in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
        array = numpy_helper.to_array(given) if isinstance(given, TensorProto) else given
        if not isinstance(array, np.ndarray) or array.dtype.kind == "U":
            return None
        if array.dtype not in _KNOWN or not 0 < array.size <= _MOST_VALUES:
            return None
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return None
        feeds[value.name] = array
    return feeds or None


def direct(path, feeds):
    """What ONNX Runtime itself gives; None where it does not know the operator, or gives no tensors."""
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs = dict(
            zip([out.name for out in session.get_outputs()], session.run(None, feeds), strict=True)
        )
    except Exception:  # noqa: BLE001 - whatever this runtime cannot do is not asked of the server
        return None
    known = all(isinstance(value, np.ndarray) and value.dtype in _KNOWN for value in outputs.values())
    return outputs if known else None


def ask(port, name, feeds):
    """The outputs that a server gives, asked for as binary tensors."""
    header = {"inputs": [], "parameters": {"binary_data_output": True}}
    body = b""
    for feed, array in feeds.items():
        raw = raw_bytes(array)
        size = {"binary_data_size": len(raw)}
        shape = list(array.shape)
        tensor = {"name": feed, "datatype": datatype_of(array), "shape": shape, "parameters": size}
        header["inputs"].append(tensor)
        body += raw
    head = orjson.dumps(header)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    length = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", f"/v2/models/{quote(name)}/infer", head + body, length)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.status == 200, content
    end = int(answer.headers["Inference-Header-Content-Length"])
    outputs = {}
    for tensor in orjson.loads(content[:end])["outputs"]:
        size = tensor["parameters"]["binary_data_size"]
        outputs[tensor["name"]] = read(content[end : end + size], tensor)
        end += size
    assert end == len(content)
    return outputs


def raw_bytes(array):
    if array.dtype.kind != "O":
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    cells = [str(cell).encode() for cell in array.flat]
    return b"".join(len(cell).to_bytes(4, "little") + cell for cell in cells)


def read(raw, tensor):
    dtype = np.dtype(NUMPY_TYPES[tensor["datatype"]])
    if dtype.kind != "O":
        return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(tensor["shape"])
    cells = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        cells.append(raw[4:end].decode())
        raw = raw[end:]
    return np.array(cells, object).reshape(tensor["shape"])


async def serve_and_ask(folder, name, feeds):
    model = Model.load(open_package(folder), name=name, device="cpu", threads=1)
    settings = ServingSettings()
    engine = Engine(model, settings, Metrics(), None)
    router = Router(Served(engine, settings))
    feedback = FeedbackDesk.of(settings, Arms(settings))
    app = App(router, settings, RequestIds(), feedback)
    listener = Listener(app, bind("127.0.0.1", 0, "--port"), HttpLimits())
    await listener.start()
    await engine.start()
    try:
        return await asyncio.to_thread(ask, listener.address[1], name, feeds)
    finally:
        await listener.stop_accepting()
        await engine.close(0)
        listener.abort()


def write(folder: Path, network):
    folder.mkdir()
    (folder / MODEL).write_bytes(network.SerializeToString())
    (folder / SPEC).write_text(write_spec(spec_from_network(read_network(folder / MODEL))))
    seal(folder)


def test_outputs_are_those_of_onnxruntime(tmp_path, cases):
    compared = 0
    for case in cases:
        feeds = feeds_of(case)
        if feeds is None:
            continue
        (tmp_path / "model.onnx").write_bytes(case.model.SerializeToString())
        want = direct(tmp_path / "model.onnx", feeds)
        if want is None:
            continue
        write(tmp_path / case.name, case.model)
        got = asyncio.run(serve_and_ask(tmp_path / case.name, case.name, feeds))
        assert list(got) == list(want), case.name
        for output, array in want.items():
            assert got[output].dtype == array.dtype, case.name
            if array.dtype.kind == "f":
                np.testing.assert_allclose(got[output], array, rtol=1e-6, err_msg=case.name)
            else:
                np.testing.assert_array_equal(got[output], array, err_msg=case.name)
        compared += 1
    assert compared > 40
