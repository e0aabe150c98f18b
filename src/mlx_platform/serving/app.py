"""The routes of a served model, as a bare ASGI application."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlx_platform.core import version
from mlx_platform.core.settings import ServingSettings
from mlx_platform.serving import protocol_v2
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exchange import ARM, Exchange
from mlx_platform.serving.http_exchange import (
    ClientGoneError,
    Receive,
    Request,
    RequestIds,
    Response,
    Scope,
    check_content_type,
    decode_body,
    error_response,
    header_lines,
    json_response,
    read_body,
)
from mlx_platform.serving.http_protocol import DISCONNECT_HOOK, RESPOND
from mlx_platform.serving.page import describe_routes
from mlx_platform.serving.predict_body import Bounds, parse_predict, render_predict
from mlx_platform.serving.refusal import Refusal, draining, malformed, not_ready
from mlx_platform.serving.routes import MODEL, OTHER, VERSION, RouteTable, check_method

_OPENAPI = Path(__file__).with_name("openapi.json")
_OCTETS = b"application/octet-stream"
_logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """ASGI application over one engine."""

    def __init__(self, engine: Engine, settings: ServingSettings) -> None:
        self._engine = engine
        self._metrics = engine.metrics
        self._body_limit = settings.max_body_bytes
        self._timeout = settings.request_timeout_ms / 1000
        model = engine.model
        self._bounds = Bounds.of(model.spec.inputs, model.columns, engine.max_rows)
        self._routes = RouteTable(model.name, model.version)
        self._ids = RequestIds()
        self._head = {"model_name": model.name, "model_version": model.version}
        self._answered_by = {
            "model": model.name,
            "version": model.version,
            "digest": model.digest,
            "arm": ARM,
        }
        self._identity = header_lines(
            (
                (b"x-mlx-model", quote(model.name, safe=" !#$&'()*+,/:;=?@[]~").encode()),
                (b"x-mlx-version", quote(model.version).encode()),
                (b"x-mlx-digest", model.digest.encode()),
                (b"x-mlx-arm", ARM.encode()),
            )
        )
        self._handlers: dict[str, Handler] = {
            "/": self._page,
            "/openapi.json": self._openapi,
            "/predict": self._predict,
            "/v2": self._server,
            "/v2/health/live": self._live,
            "/v2/health/ready": self._ready,
            MODEL: self._model,
            f"{MODEL}/ready": self._model_ready,
            f"{MODEL}/infer": self._infer,
            VERSION: self._model,
            f"{VERSION}/ready": self._model_ready,
            f"{VERSION}/infer": self._infer,
        }

    async def __call__(self, scope: Scope, receive: Receive, _send: Any) -> None:
        """Answer one request; whatever goes wrong, the client gets an error object."""
        started = time.monotonic()
        headers = dict(scope["headers"])
        request = Request(scope["method"], headers, b"", {}, scope, self._ids.choose(headers))
        match = self._routes.find(scope["raw_path"])
        try:
            # Also where nothing is done with it: a body that stays unread would hold up the next request.
            request.body = await read_body(receive)
            route = check_method(match, request.method)
            request.parameters = route.parameters
            response = await self._handlers[route.template](request)
        except (ClientGoneError, _AbandonedError):
            return
        except Refusal as refusal:
            response = error_response(refusal)
            if refusal.status == 405 and match is not None:
                response.headers.append((b"allow", match.method.encode()))
        except Exception:  # the rim: a caller gets an answer whatever happened, and the log the traceback
            _logger.exception("A request could not be answered.")
            response = error_response(
                Refusal(500, "The server failed to answer: this is a fault of its own.")
            )
        self._send(request, response)
        template = match.template if match is not None else OTHER
        self._metrics.observe_request(template, response.status, time.monotonic() - started)

    def _send(self, request: Request, response: Response) -> None:
        head = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b" % (
            response.content_type,
            len(response.body),
            request.id.encode(),
            self._identity,
            header_lines(response.headers) if response.headers else b"",
        )
        respond = request.scope[RESPOND]
        respond(response.status, head, response.body, close=self._engine.draining)

    async def _page(self, request: Request) -> Response:
        host = request.headers.get(b"host", b"localhost").decode("latin-1")
        text = describe_routes(self._engine.model, self._engine.signature, host)
        return Response(text.encode(), content_type=b"text/plain; charset=utf-8")

    async def _openapi(self, _request: Request) -> Response:
        return Response(_OPENAPI.read_bytes())

    async def _server(self, _request: Request) -> Response:
        return json_response(
            {"name": "mlx", "version": version.VERSION, "extensions": protocol_v2.EXTENSIONS}
        )

    async def _live(self, _request: Request) -> Response:
        return json_response({"live": True})

    async def _ready(self, _request: Request) -> Response:
        ready = self._engine.ready
        return json_response({"ready": ready, "live": True}, 200 if ready else 503)

    async def _model(self, request: Request) -> Response:
        self._check_model(request)
        model = self._engine.model
        return json_response(protocol_v2.describe_model(model.name, model.version, self._engine.signature))

    async def _model_ready(self, request: Request) -> Response:
        self._check_model(request)
        ready = self._engine.ready
        return json_response({"name": self._engine.model.name, "ready": ready}, 200 if ready else 503)

    def _check_model(self, request: Request) -> None:
        model = self._engine.model
        if request.parameters["model"] != model.name:
            raise Refusal(404, "This server serves another model: GET / says which.")
        if request.parameters.get("version", model.version) != model.version:
            raise Refusal(404, "This server serves another version of the model: GET / says which.")

    async def _infer(self, request: Request) -> Response:
        self._check_model(request)
        return await self._conclude(request, self._open(request, "infer"), self._answer_infer)

    async def _predict(self, request: Request) -> Response:
        return await self._conclude(request, self._open(request, "predict"), self._answer_predict)

    async def _answer_infer(self, request: Request, exchange: Exchange) -> Response:
        signature = self._engine.signature
        length = request.headers.get(b"inference-header-content-length")
        call = protocol_v2.parse_infer(self._plain_body(request), length, signature)
        if call.timeout is not None:
            exchange.deadline = min(exchange.deadline, exchange.started + call.timeout)
        exchange.seconds["ingress"] = time.monotonic() - exchange.started
        outputs = await self._engine.infer(call, exchange)
        began = time.monotonic()
        body, header_length = protocol_v2.render_infer(call, outputs, signature, self._head)
        exchange.seconds["egress"] = time.monotonic() - began
        if header_length is None:
            return Response(body)
        extra = [(b"inference-header-content-length", b"%d" % header_length)]
        return Response(body, content_type=_OCTETS, headers=extra)

    async def _answer_predict(self, request: Request, exchange: Exchange) -> Response:
        rows, client_id = parse_predict(self._plain_body(request), self._bounds)
        exchange.seconds["ingress"] = time.monotonic() - exchange.started
        answers = await self._engine.predict(rows, exchange)
        began = time.monotonic()
        body = render_predict(client_id, answers, exchange.rows, self._answered_by)
        exchange.seconds["egress"] = time.monotonic() - began
        return Response(body)

    def _open(self, request: Request, endpoint: str) -> Exchange:
        """Begin an exchange, if the server takes any now."""
        if self._engine.batcher is None:
            raise not_ready()
        if self._engine.closed:
            raise draining()
        check_content_type(request.headers)
        started = time.monotonic()
        timeout = self._timeout
        wish = request.headers.get(b"x-request-timeout-ms")
        if wish is not None:
            if not wish.isdigit() or len(wish) > 9 or not int(wish):
                raise malformed("X-Request-Timeout-Ms must be a number of milliseconds.")
            timeout = min(timeout, int(wish) / 1000)
        exchange = Exchange(request.id, endpoint, datetime.now(UTC), started, started + timeout)
        request.scope[DISCONNECT_HOOK] = partial(self._engine.abandon, exchange)
        return exchange

    def _plain_body(self, request: Request) -> bytes:
        return decode_body(request.body, request.headers, self._body_limit)

    async def _conclude(
        self, request: Request, exchange: Exchange, answer: Callable[[Request, Exchange], Awaitable[Response]]
    ) -> Response:
        """Answer an exchange, and close the books on it however it ends."""
        try:
            response = await answer(request, exchange)
        except Refusal as refusal:
            response = error_response(refusal)
        except asyncio.CancelledError:
            if exchange.abandoned:
                raise _AbandonedError from None
            raise
        total = time.monotonic() - exchange.started
        self._engine.finish(exchange, status=response.status, error=response.error, total=total)
        return response


class _AbandonedError(Exception):
    """The client left while its request was being worked on."""
