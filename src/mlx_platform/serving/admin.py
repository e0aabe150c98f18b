"""The second listener: metrics, health and configuration, for those who run the server and nobody else."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import orjson

from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving.access import Access
from mlx_platform.serving.behind import answer_behind
from mlx_platform.serving.capture import MOST_MINUTES
from mlx_platform.serving.exposition import expose, make_registry
from mlx_platform.serving.http_exchange import Receive, Response, Scope, json_response
from mlx_platform.serving.masking import without_credentials
from mlx_platform.serving.pulse import Pulse
from mlx_platform.serving.refusal import Refusal, malformed
from mlx_platform.serving.router import Router

_MINUTES = 5.0
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Route:
    """`probe` answers whoever asks; what is `protected` takes the token wherever it is asked from."""

    answer: Callable[[bytes], Response]
    probe: bool = False
    protected: bool = False


class AdminApp:
    """ASGI application over what is served, on a thread of its own: it reads what the loop of that writes."""

    def __init__(self, router: Router, settings: ServingSettings, access: Access, pulse: Pulse) -> None:
        self._router = router
        self._settings = settings
        self._access = access
        self._pulse = pulse
        self._capture = router.engine.observation.capture  # the same for all versions
        # Made at the first scrape: its library takes as long to load as half of everything else.
        self._registry = cache(partial(make_registry, router, pulse))
        self._routes: dict[tuple[str, str], _Route] = {
            ("GET", "/metrics"): _Route(self._metrics),
            ("GET", "/healthz"): _Route(self._live, probe=True),
            ("GET", "/readyz"): _Route(self._ready, probe=True),
            ("GET", "/debug/config"): _Route(self._config),
            ("GET", "/debug/capture"): _Route(self._captured, protected=True),
            ("PUT", "/debug/capture"): _Route(self._start_capture, protected=True),
            ("DELETE", "/debug/capture"): _Route(self._stop_capture, protected=True),
        }

    async def __call__(self, scope: Scope, receive: Receive, _send: Any) -> None:
        await answer_behind(scope, receive, self._answer)

    async def _answer(self, scope: Scope, body: bytes) -> Response:
        path, method = scope["path"], scope["method"]
        takes = [known for known, place in self._routes if place == path]
        if not takes:
            places = dict.fromkeys(place for _, place in self._routes)
            raise Refusal(404, f"There is no such route, only {', '.join(places)}.")
        route = self._routes.get(("GET" if method == "HEAD" else method, path))
        if route is None:
            raise Refusal(405, f"This route takes {' and '.join(takes)}.")
        if not route.probe:
            self._access.check(dict(scope["headers"]), protected=route.protected)
        return route.answer(body)

    def _metrics(self, _body: bytes) -> Response:
        return Response(expose(self._registry()), content_type=_TEXT)

    def _live(self, _body: bytes) -> Response:
        alive = self._pulse.alive
        return json_response({"live": alive}, 200 if alive else 503)

    def _ready(self, _body: bytes) -> Response:
        ready = self._router.ready and self._pulse.alive
        document = {"ready": ready, "degraded": self._router.engine.runner.degraded}
        return json_response(document, 200 if ready else 503)

    def _config(self, _body: bytes) -> Response:
        return json_response(self._configuration())

    def _captured(self, _body: bytes) -> Response:
        return json_response(self._capture.document())

    def _start_capture(self, body: bytes) -> Response:
        minutes, share = _wish(body)
        self._capture.start(minutes, share)
        # What nobody looks at any more is forgotten in time as well.
        asyncio.get_running_loop().call_later(minutes * 60 + 1, self._capture.expire)
        return self._captured(b"")

    def _stop_capture(self, _body: bytes) -> Response:
        self._capture.stop()
        return self._captured(b"")

    def _configuration(self) -> dict[str, object]:
        """Every setting as it is in force, and what the warm-up found."""
        engine = self._router.engine
        session = engine.model.session
        return {
            "model": engine.model.name,
            "version": engine.model.version,
            "digest": engine.model.digest,
            "device": session.device,
            "degraded": engine.runner.degraded,
            "fell_back": session.fell_back,
            "nodes_by_provider": dict(session.nodes),
            "providers": list(session.providers),
            "threads": session.threads,
            "inline": engine.batcher.inline if engine.batcher else None,
            "batching_fault": engine.loneliness.fault,
            "workers": engine.batcher.policy.workers if engine.batcher else None,
            "joins_requests": engine.signature.batched and engine.warm.rowwise,
            "fills_up": sorted(engine.warm.padding.fill) if engine.warm.padding else [],
            "batch_size": asdict(engine.warm.size),
            "milliseconds_by_rows": {
                str(rows): seconds * 1000 for rows, seconds in engine.warm.seconds.items()
            },
            **{name: report() for name, report in self._router.reports.items()},
            "settings": without_credentials(asdict(self._settings)),
        }


def _wish(body: bytes) -> tuple[float, float]:
    """For how many minutes, and of which share of the requests, debug mode is wanted."""
    try:
        document = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise malformed("The body is no valid JSON.") from error
    if not isinstance(document, dict) or not document.keys() <= {"minutes", "share"}:
        raise malformed("The body is an object with minutes and share, or nothing.")
    minutes, share = document.get("minutes", _MINUTES), document.get("share", 1.0)
    if not _is_within(minutes, MOST_MINUTES):
        raise malformed(f"The minutes must be a number above 0 and at most {MOST_MINUTES}.")
    if not _is_within(share, 1):
        raise malformed("The share must be a number above 0 and at most 1.")
    return float(minutes), float(share)


def _is_within(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most
