"""The routes of a served model, as a bare ASGI application."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving import metadata, protocol_v2, repository
from mlx_platform.serving.exchange import Exchange
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
    is_image,
    json_response,
    read_body,
)
from mlx_platform.serving.http_protocol import DISCONNECT_HOOK, RESPOND
from mlx_platform.serving.metrics import ABANDONED
from mlx_platform.serving.page import describe_in_html, describe_routes
from mlx_platform.serving.predict_body import image_rows, parse_predict, render_predict
from mlx_platform.serving.refusal import Refusal, malformed
from mlx_platform.serving.rollout.feedback_desk import FeedbackDesk
from mlx_platform.serving.router import Router
from mlx_platform.serving.routes import MODEL, OTHER, REPOSITORY, VERSION, RouteTable, check_method
from mlx_platform.serving.served import LARGE_BYTES, Served

_OPENAPI = Path(__file__).with_name("openapi.json")
_OCTETS = b"application/octet-stream"
_ONLY_STYLE = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
_logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Request, Served, Exchange], Awaitable[Response]]


class App:
    """ASGI application over what is served."""

    def __init__(
        self, router: Router, settings: ServingSettings, ids: RequestIds, feedback: FeedbackDesk
    ) -> None:
        self._router = router
        self._feedback = feedback
        self._body_limit = settings.max_body_bytes
        self._nulls = settings.non_finite == "null"
        self._routes = RouteTable(router.name, router.stable.version)
        self._ids = ids
        self._handlers: dict[str, Handler] = {
            "/": self._page,
            "/docs": self._docs,
            "/openapi.json": self._openapi,
            "/predict": self._predict,
            "/feedback": self._take_feedback,
            "/v2": self._server,
            "/v2/health/live": self._live,
            "/v2/health/ready": self._ready,
            "/v2/models/stats": self._statistics,
            f"{REPOSITORY}/index": self._index,
            f"{REPOSITORY}/models/{{model}}/load": self._load,
            f"{REPOSITORY}/models/{{model}}/unload": self._unload,
        }
        for place in (MODEL, VERSION):
            self._handlers |= {
                place: self._model,
                f"{place}/ready": self._model_ready,
                f"{place}/infer": self._infer,
                f"{place}/config": self._model_config,
                f"{place}/stats": self._model_statistics,
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
        metrics = request.counted or self._router.engine.metrics
        metrics.observe_request(template, response.status, time.monotonic() - started)

    def _send(self, request: Request, response: Response) -> None:
        head = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b" % (
            response.content_type,
            len(response.body),
            request.id.encode(),
            response.identity or self._router.stable.identity.lines,
            header_lines(response.headers) if response.headers else b"",
        )
        respond = request.scope[RESPOND]
        respond(response.status, head, response.body, close=self._router.engine.draining)

    async def _page(self, request: Request) -> Response:
        served = self._router.stable
        text = describe_routes(served.engine.model, served.signature, _host(request))
        return Response(text.encode(), content_type=b"text/plain; charset=utf-8")

    async def _docs(self, request: Request) -> Response:
        served = self._router.stable
        text = describe_in_html(served.engine.model, served.signature, _host(request))
        return Response(text.encode(), content_type=b"text/html; charset=utf-8", headers=[_ONLY_STYLE])

    async def _openapi(self, _request: Request) -> Response:
        return Response(_OPENAPI.read_bytes())

    async def _take_feedback(self, request: Request) -> Response:
        check_content_type(request.headers)
        return json_response(await self._feedback.take(self._plain_body(request)))

    async def _server(self, _request: Request) -> Response:
        return json_response(metadata.describe_server())

    async def _live(self, _request: Request) -> Response:
        return json_response({"live": True})

    async def _ready(self, _request: Request) -> Response:
        ready = self._router.ready
        return json_response({"ready": ready, "live": True}, 200 if ready else 503)

    async def _model(self, request: Request) -> Response:
        served = self._named(request)
        document = metadata.describe_model(served.name, served.version, served.signature)
        return json_response(document | {"parameters": metadata.describe_device(served.engine.model.session)})

    async def _model_ready(self, request: Request) -> Response:
        served = self._named(request)
        ready = served.engine.ready
        return json_response({"name": served.name, "ready": ready}, 200 if ready else 503)

    async def _model_config(self, request: Request) -> Response:
        return json_response(self._named(request).configuration())

    async def _model_statistics(self, request: Request) -> Response:
        served = self._named(request)
        if request.parameters.get("version"):
            return json_response({"model_stats": [served.statistics_document()]})
        return await self._statistics(request)

    async def _statistics(self, _request: Request) -> Response:
        return json_response({"model_stats": [served.statistics_document() for served in self._router]})

    async def _index(self, request: Request) -> Response:
        document = repository.parse_body(self._plain_body(request))
        ready_only = repository.wants_ready_only(document)
        return json_response(repository.index(self._router, ready_only=ready_only))

    async def _load(self, request: Request) -> Response:
        document = repository.parse_body(self._plain_body(request))
        overrides = repository.wants_overrides(document)
        repository.load(self._router, request.parameters["model"], overrides=overrides)
        return json_response({})

    async def _unload(self, request: Request) -> Response:
        repository.unload(self._router, request.parameters["model"])
        return json_response({})

    def _named(self, request: Request) -> Served:
        """What the path names."""
        served = self._router.named(request.parameters["model"], request.parameters.get("version", ""))
        request.counted = served.engine.metrics
        return served

    async def _infer(self, request: Request) -> Response:
        served = self._named(request)
        pinned = bool(request.parameters.get("version"))
        if not pinned:
            served = self._router.choose(request.id, request.headers)
        return await self._conclude(request, served, "infer", self._answer_infer, pinned=pinned)

    async def _predict(self, request: Request) -> Response:
        served = self._router.choose(request.id, request.headers)
        return await self._conclude(request, served, "predict", self._answer_predict)

    async def _answer_infer(self, request: Request, served: Served, exchange: Exchange) -> Response:
        check_content_type(request.headers)
        if _is_large(request):
            call = await served.beside(partial(self._parse_infer, request, served))
        else:
            call = self._parse_infer(request, served)
        outputs = await served.infer(call, exchange)
        began = time.monotonic()
        head, size = served.author(exchange).head, 0
        for array in outputs.values():
            size += array.nbytes
        render = partial(protocol_v2.render_infer, call, outputs, served.signature, head, nulls=self._nulls)
        body, header_length = await served.beside(render) if size > LARGE_BYTES else render()
        exchange.seconds["egress"] = time.monotonic() - began
        if header_length is None:
            return Response(body)
        extra = [(b"inference-header-content-length", b"%d" % header_length)]
        return Response(body, content_type=_OCTETS, headers=extra)

    async def _answer_predict(self, request: Request, served: Served, exchange: Exchange) -> Response:
        rows: Any
        if is_image(request.headers):
            rows, client_id = image_rows(self._plain_body(request), served.engine.model), None
        else:
            check_content_type(request.headers)
            parse = partial(self._parse_predict, request, served)
            rows, client_id = await served.beside(parse) if _is_large(request) else parse()
        answers = await served.predict(rows, exchange)
        began = time.monotonic()
        body = render_predict(client_id, answers, exchange.rows, served.author(exchange).answered_by)
        exchange.seconds["egress"] = time.monotonic() - began
        return Response(body)

    def _open(self, request: Request, served: Served, endpoint: str) -> Exchange:
        """Begin an exchange, if the server takes any now."""
        wish = request.headers.get(b"x-request-timeout-ms")
        seconds = None
        if wish is not None:
            if not wish.isdigit() or len(wish) > 9 or not int(wish):
                raise malformed("X-Request-Timeout-Ms must be a whole number of milliseconds below 10^9.")
            seconds = int(wish) / 1000
        exchange = served.open(request.id, endpoint, request.headers, seconds)
        request.scope[DISCONNECT_HOOK] = partial(served.abandon, exchange)
        return exchange

    def _parse_infer(self, request: Request, served: Served) -> protocol_v2.InferRequest:
        length = request.headers.get(b"inference-header-content-length")
        return protocol_v2.parse_infer(self._plain_body(request), length, served.signature)

    def _parse_predict(self, request: Request, served: Served) -> tuple[Any, Any]:
        return parse_predict(self._plain_body(request), served.bounds)

    def _plain_body(self, request: Request) -> bytes:
        return decode_body(request.body, request.headers, self._body_limit)

    async def _conclude(
        self, request: Request, served: Served, endpoint: str, answer: Answer, *, pinned: bool = False
    ) -> Response:
        """Have a version answer, and close the books on it however that ends."""
        request.counted = served.engine.metrics
        exchange = self._open(request, served, endpoint)
        exchange.pinned = pinned
        try:
            response = await answer(request, served, exchange)
        except Refusal as refusal:
            response = error_response(refusal)
        except asyncio.CancelledError:
            if exchange.abandoned:
                self._router.finish(
                    served, exchange, status=ABANDONED, error="The client left before the answer."
                )
                raise _AbandonedError from None
            raise
        except Exception:
            self._router.finish(served, exchange, status=500, error="The server failed to answer.")
            raise
        total = self._router.finish(served, exchange, status=response.status, error=response.error)
        response.identity = served.author(exchange).lines
        response.headers += served.told(exchange, total)
        return response


def _is_large(request: Request) -> bool:
    return len(request.body) > LARGE_BYTES or b"content-encoding" in request.headers


def _host(request: Request) -> str:
    return request.headers.get(b"host", b"localhost").decode("latin-1")


class _AbandonedError(Exception):
    """The client left while its request was being worked on."""
