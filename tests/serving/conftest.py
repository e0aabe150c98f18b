"""Small real networks, packages around them, and a real server process on a free port."""

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.inference.graph import read_network
from mlx_platform.inference.model import Model
from mlx_platform.inference.package import MODEL, SPEC, open_package, seal
from mlx_platform.inference.spec import ModelSpec, StepSpec, spec_from_network, write_spec

_SCRIPT = Path(__file__).with_name("serve_process.py")
F32, I64, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def _tensor(name: str, values: Any, dtype: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def _graph(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value(*spec) for spec in inputs], [value(*spec) for spec in outputs], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _affine() -> onnx.ModelProto:
    """probabilities = softmax(x W + b), four inputs, three classes."""
    weights = np.random.default_rng(0).standard_normal((4, 3))
    return _graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["s"]),
            helper.make_node("Softmax", ["s"], ["probabilities"], axis=-1),
        ],
        [("x", F32, ["n", 4])],
        [("probabilities", F32, ["n", 3])],
        [_tensor("w", weights, np.float32), _tensor("b", [0.1, 0, -0.1], np.float32)],
    )


def _lookup() -> onnx.ModelProto:
    """y = [10, 11, 12, 13][i]; any other i makes the run fail."""
    return _graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        [("i", I64, ["n", 1])],
        [("y", F32, ["n", 1])],
        [_tensor("table", [10, 11, 12, 13], np.float32)],
    )


def _logarithm() -> onnx.ModelProto:
    """y = log x: infinite at 0, NaN below."""
    return _graph([helper.make_node("Log", ["x"], ["y"])], [("x", F32, ["n", 1])], [("y", F32, ["n", 1])], [])


def _column_mean() -> onnx.ModelProto:
    """The mean over the rows: one row whatever comes in, although the graph calls it a varying dimension."""
    return _graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)],
        [("x", F32, ["n", 2])],
        [("y", F32, ["m", 2])],
        [],
    )


def _identity() -> onnx.ModelProto:
    """y = x, of any size."""
    return _graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", F32, ["n", "k"])],
        [("y", F32, ["n", "k"])],
        [],
    )


def _shape_and_sums() -> onnx.ModelProto:
    """The shape of the input and the sums of its columns: what is lost when a cache takes bytes for all."""
    return _graph(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("ReduceSum", ["x", "rows"], ["sums"], keepdims=0),
        ],
        [("x", F32, ["n", "m"])],
        [("shape", I64, [2]), ("sums", F32, ["m"])],
        [_tensor("rows", [0], np.int64)],
    )


def _double_pair() -> onnx.ModelProto:
    """y = 2 x for exactly two rows."""
    return _graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], [("x", F32, [2, 3])], [("y", F32, [2, 3])], []
    )


def _kinds() -> onnx.ModelProto:
    """Every input as it came, a text and a truth among them."""
    pairs = {
        "t": (TEXT, ["n", 1]),
        "f": (F32, ["n", "k"]),
        "i": (I64, ["n"]),
        "u": (TensorProto.UINT8, ["n"]),
    }
    pairs |= {
        "b": (TensorProto.BOOL, ["n"]),
        "d": (TensorProto.DOUBLE, ["n"]),
        "h": (TensorProto.FLOAT16, ["n"]),
    }
    return _graph(
        [helper.make_node("Identity", [name], [f"{name}_out"]) for name in pairs],
        [(name, kind, shape) for name, (kind, shape) in pairs.items()],
        [(f"{name}_out", kind, shape) for name, (kind, shape) in pairs.items()],
        [],
    )


def _masked_mean(*, heeds_mask: bool = True) -> onnx.ModelProto:
    """The mean of the embeddings of a sequence [n, 2], where its mask is 1, and twice its ids [n, k]."""
    table = np.random.default_rng(0).standard_normal((50, 2))
    summed = "kept" if heeds_mask else "embedded"
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Cast", ["mask"], ["seen"], to=F32),
        helper.make_node("Unsqueeze", ["seen", "last"], ["weights"]),
        helper.make_node("Mul", ["embedded", "weights"], ["kept"]),
        helper.make_node("ReduceSum", [summed, "second"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "second"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["mean"]),
        helper.make_node("Add", ["ids", "ids"], ["doubled"]),
    ]
    constants = [_tensor("table", table, np.float32)]
    constants += [_tensor(name, [axis], np.int64) for name, axis in (("second", 1), ("last", 2))]
    return _graph(
        nodes,
        [("ids", I64, ["n", "k"]), ("mask", I64, ["n", "k"])],
        [("mean", F32, ["n", 2]), ("doubled", I64, ["n", "k"])],
        constants,
    )


def _sums() -> onnx.ModelProto:
    """The sum of each row, of any length."""
    return _graph(
        [helper.make_node("ReduceSum", ["x", "second"], ["sums"], keepdims=1)],
        [("x", F32, ["n", "k"])],
        [("sums", F32, ["n", 1])],
        [_tensor("second", [1], np.int64)],
    )


def _countdown() -> onnx.ModelProto:
    """Loops as often as the largest number says, then answers the numbers: as slow as one likes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["v", "one"], ["v_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("k", I64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", F32, []),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", F32, []),
        ],
        [_tensor("one", 1, np.float32)],
    )
    return _graph(
        [
            helper.make_node("ReduceMax", ["n"], ["trips"], keepdims=0),
            helper.make_node("Loop", ["trips", "true", "zero"], ["v_end"], body=body),
            helper.make_node("Mul", ["v_end", "zero"], ["nothing"]),
            helper.make_node("Cast", ["n"], ["number"], to=F32),
            helper.make_node("Add", ["number", "nothing"], ["y"]),
        ],
        [("n", I64, ["rows", 1])],
        [("y", F32, ["rows", 1])],
        [_tensor("true", True, np.bool_), _tensor("zero", 0, np.float32)],
    )


def _brightness() -> onnx.ModelProto:
    """The mean of an image of two by two pixels."""
    return _graph(
        [helper.make_node("ReduceMean", ["pixels"], ["brightness"], axes=[1, 2, 3], keepdims=0)],
        [("pixels", F32, ["n", 3, 2, 2])],
        [("brightness", F32, ["n"])],
        [],
    )


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "affine": _affine,
    "lookup": _lookup,
    "logarithm": _logarithm,
    "column_mean": _column_mean,
    "shape_and_sums": _shape_and_sums,
    "double_pair": _double_pair,
    "identity": _identity,
    "kinds": _kinds,
    "sums": _sums,
    "masked_mean": _masked_mean,
    "unmasked_mean": partial(_masked_mean, heeds_mask=False),
    "countdown": _countdown,
    "brightness": _brightness,
}


def write_package(folder: Path, network: str, spec: ModelSpec | None = None, golden: bytes = b"") -> Path:
    """Seal a package of one of the networks."""
    folder.mkdir(parents=True)
    onnx.save(NETWORKS[network](), folder / MODEL)
    spec = spec or replace(spec_from_network(read_network(folder / MODEL)), task="tensors", post=())
    (folder / SPEC).write_text(write_spec(spec))
    if golden:
        (folder / "golden.jsonl").write_bytes(golden)
    seal(folder)
    return folder


def table_spec() -> ModelSpec:
    """The affine network as a classifier of named columns."""
    return ModelSpec(
        task="classification",
        inputs=(TensorSpec("x", "FP32", (None, 4)),),
        outputs=(TensorSpec("probabilities", "FP32", (None, 3)),),
        labels=("low", "mid", "high"),
        pre=(StepSpec("columns", {"names": ["a", "b", "c", "d"]}),),
        post=(StepSpec("labels", {"output": "probabilities"}),),
    )


def image_spec() -> ModelSpec:
    """The brightness of encoded images."""
    return ModelSpec(
        task="tensors",
        inputs=(TensorSpec("pixels", "FP32", (None, 3, 2, 2)),),
        outputs=(TensorSpec("brightness", "FP32", (None,)),),
        labels=(),
        pre=(StepSpec("image", {"column": "photo", "input": "pixels", "size": [2, 2]}),),
        post=(),
    )


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A package folder for each network, and `table`: affine over named columns."""
    root = tmp_path_factory.mktemp("packages")
    made = {name: write_package(root / name, name) for name in NETWORKS}
    made["table"] = write_package(root / "table", "affine", table_spec())
    return made | {"picture": write_package(root / "picture", "brightness", image_spec())}


@pytest.fixture(scope="session")
def load(packages: dict[str, Path]) -> Callable[[str], Model]:
    def load_package(name: str) -> Model:
        return Model.load(open_package(packages[name]), name=name, version="3", device="cpu", threads=1)

    return load_package


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Server:
    """A server process and a way to ask it."""

    process: "subprocess.Popen[bytes]"
    addresses: dict[str, str]
    errors: Path

    @property
    def port(self) -> int:
        return int(self.addresses["url"].rpartition(":")[2])

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        base = "admin_url" if path.startswith(("/metrics", "/healthz", "/readyz", "/debug")) else "url"
        connection = http.client.HTTPConnection(self.addresses[base].removeprefix("http://"), timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)

    def post(self, path: str, document: Any, headers: dict[str, str] | None = None) -> Reply:
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        return self.request("POST", path, body, {"Content-Type": "application/json"} | (headers or {}))

    def infer(self, inputs: dict[str, Any], **members: Any) -> Reply:
        document = {"inputs": [{"name": name, **tensor} for name, tensor in inputs.items()]} | members
        return self.post(f"/v2/models/{self.addresses['model']}/infer", document)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels; 0 where there are none."""
        text = self.get("/metrics").body.decode()
        wanted = labels.items()
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return sum(s.value for s in samples if s.name == name and wanted <= s.labels.items())

    def stop(self, number: int = signal.SIGTERM, timeout: float = 20) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)


StartServer = Callable[..., Server]


@contextmanager
def started_server(
    folder: Path, package: Path, *, traffic: Path | None = None, name: str = "", **settings: Any
) -> Iterator[Server]:
    arguments = [str(package), name or package.name, str(traffic or ""), orjson.dumps(settings).decode()]
    errors = folder / "server.err"
    with errors.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(os.environ) | {"PYTHONWARNINGS": "error"},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, errors.read_text()
        yield Server(process, orjson.loads(line), errors)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers of package folders; they end with the test."""
    with ExitStack() as stack:

        def start(package: Path, **settings: Any) -> Server:
            folder = tmp_path / f"server-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(started_server(folder, package, **settings))

        yield start


@pytest.fixture
def serve(start_server: StartServer, packages: dict[str, Path]) -> StartServer:
    """Start servers of the networks: `serve("affine", max_batch_size=4)`."""
    return lambda network, **settings: start_server(packages[network], **settings)


@pytest.fixture(scope="session")
def start_lasting_server(
    tmp_path_factory: pytest.TempPathFactory, packages: dict[str, Path]
) -> Iterator[StartServer]:
    """Start servers that last for all tests."""
    with ExitStack() as stack:

        def start(network: str, **settings: Any) -> Server:
            folder = tmp_path_factory.mktemp("server")
            return stack.enter_context(started_server(folder, packages[network], **settings))

        yield start


@pytest.fixture(scope="session")
def shared(start_lasting_server: StartServer) -> Callable[[str], Server]:
    """Servers with default settings, one per network, shared by all tests."""
    running: dict[str, Server] = {}

    def get(network: str) -> Server:
        if network not in running:
            running[network] = start_lasting_server(network)
        return running[network]

    return get


class Collector:
    """A collector of OpenTelemetry: keeps what it is sent, and answers what it is told to."""

    def __init__(self) -> None:
        self.messages: list[ExportTraceServiceRequest] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.messages.append(ExportTraceServiceRequest.FromString(body))
                collector.headers.append(self.headers)
                collector.paths.append(self.path)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for message in self.messages
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()
