"""The second listener: metrics, health and configuration, for those who run the server and nobody else."""

from dataclasses import asdict
from typing import Any

from mlx_platform.core.settings import ServingSettings
from mlx_platform.serving.engine import Engine
from mlx_platform.serving.exposition import expose, make_registry
from mlx_platform.serving.http_exchange import Receive, Response, Scope, error_response, json_response
from mlx_platform.serving.http_protocol import RESPOND
from mlx_platform.serving.refusal import Refusal

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
"""Addresses that only this machine reaches."""

ADMIN_ROUTES = ("/metrics", "/healthz", "/readyz", "/debug/config")


class AdminApp:
    """ASGI application over one engine; reads only, and answers only to names of this machine."""

    def __init__(self, engine: Engine, settings: ServingSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._registry = make_registry(engine)

    async def __call__(self, scope: Scope, _receive: Receive, _send: Any) -> None:
        try:
            response = self._answer(scope)
        except Refusal as refusal:
            response = error_response(refusal)
        head = b"content-type: %b\r\ncontent-length: %d\r\ncache-control: no-store\r\n"
        head %= (response.content_type, len(response.body))
        scope[RESPOND](response.status, head, response.body)

    def _answer(self, scope: Scope) -> Response:
        path = scope["path"]
        if path not in ADMIN_ROUTES:
            raise Refusal(404, f"There is no such route, only {', '.join(ADMIN_ROUTES)}.")
        if scope["method"] not in {"GET", "HEAD"}:
            raise Refusal(405, "This route takes GET.")
        # A page in a browser on this machine could reach us under a name that its author controls.
        if _host(scope) not in LOOPBACK:
            raise Refusal(403, "The Host header must name this machine.")
        if path == "/metrics":
            return Response(expose(self._registry), content_type=_TEXT)
        if path == "/healthz":
            return json_response({"live": True})
        if path == "/readyz":
            ready = self._engine.ready
            return json_response({"ready": ready}, 200 if ready else 503)
        return json_response(self._configuration())

    def _configuration(self) -> dict[str, object]:
        """Every setting as it is in force, and what the warm-up found."""
        engine = self._engine
        session = engine.model.session
        return {
            "model": engine.model.name,
            "version": engine.model.version,
            "digest": engine.model.digest,
            "device": session.device,
            "providers": list(session.providers),
            "threads": session.threads,
            "inline": engine.batcher.inline if engine.batcher else None,
            "joins_requests": engine.signature.batched and engine.warm.rowwise,
            "milliseconds_by_rows": {
                str(rows): seconds * 1000 for rows, seconds in engine.warm.seconds.items()
            },
            "settings": asdict(self._settings),
        }


def _host(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"host":
            host: str = value.decode("latin-1").lower()
            if host.startswith("["):
                return host[1:].partition("]")[0]
            return host.partition(":")[0]
    return "localhost"  # HTTP/1.0 has no Host, and browsers do not speak it
