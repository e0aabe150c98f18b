"""The methods of the protocol and of the health service, over what is served."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mlx_platform.core.tensors import NUMPY_TYPES
from mlx_platform.serving import metadata, repository
from mlx_platform.serving.exchange import Exchange
from mlx_platform.serving.grpc.messages import HEALTH, INFERENCE, message_classes
from mlx_platform.serving.grpc.tensors import parse_message, write_message
from mlx_platform.serving.http_exchange import Header, RequestIds
from mlx_platform.serving.identity import Identity
from mlx_platform.serving.metrics import ABANDONED, Metrics
from mlx_platform.serving.refusal import Refusal, malformed
from mlx_platform.serving.router import Router
from mlx_platform.serving.served import LARGE_BYTES, Served

if TYPE_CHECKING:
    import grpc

_logger = logging.getLogger(__name__)
SERVICE = f"{INFERENCE}.GRPCInferenceService"
HEALTH_SERVICE = f"{HEALTH}.Health"
_SERVING, _NOT_SERVING = 1, 2
_WATCH_SECONDS = 0.25
# What the message of a model's configuration has for names such as TYPE_FP32.
_DATA_TYPES = {f"TYPE_{'STRING' if name == 'BYTES' else name}": n for n, name in enumerate(NUMPY_TYPES, 1)}

Answer = Callable[[Any, "Call"], Awaitable[Any]]


class Call:
    """One call from its arrival to its end: who it is, and what its client is told beside the answer."""

    def __init__(self, context: Any, ids: RequestIds) -> None:
        self.context = context
        self.headers = {
            name.encode(): value.encode("utf-8", "replace") if isinstance(value, str) else value
            for name, value in context.invocation_metadata() or ()
        }
        self.id = ids.choose(self.headers)
        self.told: list[Header] = []
        self.identity: Identity | None = None
        self.counted: Metrics | None = None


class Service:
    """Answers calls on the event loop of the engine."""

    def __init__(self, router: Router, ids: RequestIds) -> None:
        self._router = router
        self._ids = ids
        self._classes = message_classes()
        self._closing = asyncio.Event()

    def handlers(self) -> tuple[Any, ...]:
        """What a gRPC server is given; messages come and go as bytes."""
        import grpc

        answers: dict[str, Answer] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
            "ModelConfig": self._config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(SERVICE, name, f"{INFERENCE}.{name}", answer)
            )
            for name, answer in answers.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        check = self._unary(HEALTH_SERVICE, "Check", f"{HEALTH}.HealthCheck", self._check_health)
        health = {
            "Check": grpc.unary_unary_rpc_method_handler(check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch_health),
        }
        return (
            grpc.method_handlers_generic_handler(SERVICE, methods),
            grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
        )

    def close(self) -> None:
        """End what would otherwise go on for as long as its client likes."""
        self._closing.set()

    def _unary(
        self, service: str, method: str, message: str, answer: Answer
    ) -> Callable[[bytes, Any], Awaitable[bytes]]:
        takes = self._classes[f"{message}Request"]
        route = f"/{service}/{method}"

        def count(call: Call, status: int, seconds: float) -> None:
            (call.counted or self._router.engine.metrics).observe_request(route, status, seconds)

        async def handle(body: bytes, context: Any) -> bytes:
            started = time.monotonic()
            call = Call(context, self._ids)
            status, reply = 200, b""
            try:
                response = await answer(_parsed(takes, body), call)
                reply = response.SerializeToString()
            except Refusal as caught:
                refusal, status = caught, caught.status
            except asyncio.CancelledError:
                count(call, ABANDONED, time.monotonic() - started)
                raise
            except Exception:  # the rim: a caller gets an answer whatever happened, and the log the traceback
                _logger.exception("A call could not be answered.")
                refusal, status = (
                    Refusal(500, "The server failed to answer: this is a fault of its own."),
                    500,
                )
            count(call, status, time.monotonic() - started)
            trailer = self._trailer(call)
            if status == 200:
                context.set_trailing_metadata(trailer)
                return reply
            if refusal.retry_after:
                trailer = (*trailer, ("grpc-retry-pushback-ms", str(refusal.retry_after * 1000)))
            await context.abort(_code(refusal.status), refusal.message, trailer)
            raise AssertionError

        return handle

    def _trailer(self, call: Call) -> tuple[tuple[str, str], ...]:
        identity = call.identity or self._router.stable.identity
        headers = [(b"x-request-id", call.id.encode()), *identity.headers, *call.told]
        return tuple((name.decode(), value.decode()) for name, value in headers)

    def _new(self, message: str, /, **members: Any) -> Any:
        return self._classes[f"{INFERENCE}.{message}"](**members)

    async def _infer(self, message: Any, call: Call) -> Any:
        router = self._router
        served, pinned = router.named(message.model_name, message.model_version), bool(message.model_version)
        if not pinned:
            served = router.choose(call.id, call.headers)
        call.counted = served.engine.metrics
        exchange = served.open(call.id, "infer", call.headers, call.context.time_remaining())
        exchange.pinned = pinned
        status, error = 200, ""
        work = asyncio.ensure_future(self._answer_infer(message, served, exchange))
        try:
            # Not cancelled along with the call: what it waits for is, with its place in the queue.
            return await asyncio.shield(work)
        except Refusal as refusal:
            status, error = refusal.status, refusal.message
            raise
        except asyncio.CancelledError:
            # The client has gone, or its deadline has passed.
            served.abandon(exchange)
            status, error = ABANDONED, "The client left before the answer."
            raise
        except Exception:
            status, error = 500, "The server failed to answer."
            raise
        finally:
            total = router.finish(served, exchange, status=status, error=error)
            call.told = served.told(exchange, total)
            call.identity = served.author(exchange)

    async def _answer_infer(self, message: Any, served: Served, exchange: Exchange) -> Any:
        parse = partial(parse_message, message, served.signature)
        request = await served.beside(parse) if message.ByteSize() > LARGE_BYTES else parse()
        outputs = await served.infer(request, exchange)
        began = time.monotonic()
        author = served.author(exchange)
        response = self._new(
            "ModelInferResponse", **{k: v for k, v in author.head.items() if k != "parameters"}
        )
        response.id = request.id or ""
        for name in ("digest", "arm", "degraded"):
            if name in author.answered_by:
                response.parameters[name].string_param = author.answered_by[name]
        write_message(response, request, outputs, served.signature)
        exchange.seconds["egress"] = time.monotonic() - began
        return response

    async def _stream_infer(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answers to the messages of a stream, in their order; a refusal does not end the stream."""
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                reading = asyncio.ensure_future(_next(messages))
                await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
                body = reading.result() if reading.done() else None
                if body is None:
                    reading.cancel()
                    return
                yield await self._answer_in_stream(body, context)
        finally:
            closing.cancel()

    async def _answer_in_stream(self, body: bytes, context: Any) -> bytes:
        started, call = time.monotonic(), Call(context, self._ids)
        response, status = self._new("ModelStreamInferResponse"), 200
        try:
            message = _parsed(self._classes[f"{INFERENCE}.ModelInferRequest"], body)
            response.infer_response.CopyFrom(await self._infer(message, call))
        except Refusal as refusal:
            response.error_message, status = refusal.message, refusal.status
        route = f"/{SERVICE}/ModelStreamInfer"
        metrics = call.counted or self._router.engine.metrics
        metrics.observe_request(route, status, time.monotonic() - started)
        reply: bytes = response.SerializeToString()
        return reply

    async def _live(self, _message: Any, _call: Call) -> Any:
        return self._new("ServerLiveResponse", live=True)

    async def _ready(self, _message: Any, _call: Call) -> Any:
        return self._new("ServerReadyResponse", ready=self._router.ready)

    async def _model_ready(self, message: Any, _call: Call) -> Any:
        served = self._router.named(message.name, message.version)
        return self._new("ModelReadyResponse", ready=served.engine.ready)

    async def _server_metadata(self, _message: Any, _call: Call) -> Any:
        return self._new("ServerMetadataResponse", **metadata.describe_server())

    async def _model_metadata(self, message: Any, _call: Call) -> Any:
        served = self._router.named(message.name, message.version)
        document = metadata.describe_model(served.name, served.version, served.signature)
        return self._new("ModelMetadataResponse", **document)

    async def _config(self, message: Any, _call: Call) -> Any:
        document = self._router.named(message.name, message.version).configuration()
        for tensor in (*document["input"], *document["output"]):
            tensor["data_type"] = _DATA_TYPES[tensor["data_type"]]
        return self._new("ModelConfigResponse", config=document)

    async def _statistics(self, message: Any, _call: Call) -> Any:
        wanted = self._router.loaded
        if message.name:
            named = self._router.named(message.name, message.version)
            wanted = (named,) if message.version else wanted
        documents = [served.statistics_document() for served in wanted]
        return self._new("ModelStatisticsResponse", model_stats=documents)

    async def _index(self, message: Any, _call: Call) -> Any:
        models = repository.index(self._router, ready_only=message.ready)
        return self._new("RepositoryIndexResponse", models=models)

    async def _load(self, message: Any, _call: Call) -> Any:
        repository.load(self._router, message.model_name, overrides=bool(message.parameters))
        return self._new("RepositoryModelLoadResponse")

    async def _unload(self, message: Any, _call: Call) -> Any:
        repository.unload(self._router, message.model_name)
        return self._new("RepositoryModelUnloadResponse")

    async def _check_health(self, message: Any, _call: Call) -> Any:
        status = self._health(message.service)
        if status is None:
            raise Refusal(404, "There is no such service.")
        return self._classes[f"{HEALTH}.HealthCheckResponse"](status=status)

    async def _watch_health(self, body: bytes, context: Any) -> AsyncIterator[bytes]:
        """The health of a service, now and whenever it changes."""
        try:
            service = _parsed(self._classes[f"{HEALTH}.HealthCheckRequest"], body).service
        except Refusal as refusal:
            await context.abort(_code(refusal.status), refusal.message)
        last = None
        while True:
            status = self._health(service) or 3  # a service that is not known may come, says the protocol
            if status != last:
                last = status
                yield self._classes[f"{HEALTH}.HealthCheckResponse"](status=status).SerializeToString()
            if self._closing.is_set():
                return
            try:
                await asyncio.wait_for(self._closing.wait(), _WATCH_SECONDS)
            except TimeoutError:
                continue

    def _health(self, service: str) -> int | None:
        if service not in {"", SERVICE, HEALTH_SERVICE, self._router.name}:
            return None
        return _SERVING if self._router.ready else _NOT_SERVING


async def _next(messages: AsyncIterator[bytes]) -> bytes | None:
    """The next message of a stream, None at its end."""
    return await anext(messages, None)


def _parsed(takes: Any, body: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return takes.FromString(body)
    except DecodeError as error:
        raise malformed("The message is not what this method takes.") from error


def _code(status: int) -> "grpc.StatusCode":
    """The code that says what an HTTP status does."""
    from grpc import StatusCode

    codes: Mapping[int, StatusCode] = {
        403: StatusCode.PERMISSION_DENIED,
        404: StatusCode.NOT_FOUND,
        429: StatusCode.RESOURCE_EXHAUSTED,
        500: StatusCode.INTERNAL,
        503: StatusCode.UNAVAILABLE,
        504: StatusCode.DEADLINE_EXCEEDED,
    }
    return codes.get(status, StatusCode.INVALID_ARGUMENT)
