"""The second listener of a supervisor: one page of metrics, one readiness, and every worker's own answers."""

import asyncio
from typing import Any, Protocol
from urllib.parse import urlsplit

from mlx_platform.serving.access import Access
from mlx_platform.serving.behind import answer_behind
from mlx_platform.serving.http_exchange import Receive, Response, Scope, json_response
from mlx_platform.serving.merge import merge
from mlx_platform.serving.processes.child import Child, document
from mlx_platform.serving.processes.quarantine import Quarantine
from mlx_platform.serving.refusal import Refusal

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_PATIENCE = 5.0  # seconds for a worker's answer
_LARGEST = 16 * 1024 * 1024


class Overseer(Protocol):
    """What is known of all workers."""

    children: tuple[Child, ...]
    quarantine: Quarantine

    @property
    def deaths(self) -> int:
        """How many workers ended unasked."""

    @property
    def ready(self) -> bool:
        """Whether any of them takes requests."""


class OverviewApp:
    """ASGI application over a supervisor."""

    def __init__(self, supervisor: Overseer, access: Access) -> None:
        self._supervisor = supervisor
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, _send: Any) -> None:
        await answer_behind(scope, receive, self._answer)

    async def _answer(self, scope: Scope, body: bytes) -> Response:
        path, method = scope["path"], scope["method"]
        supervisor = self._supervisor
        workers = [document(child) for child in supervisor.children]
        if path in {"/healthz", "/readyz"} and method in {"GET", "HEAD"}:
            if path == "/healthz":
                return json_response({"live": True, "workers": workers})
            ready = supervisor.ready
            return json_response({"ready": ready, "workers": workers}, 200 if ready else 503)
        headers = dict(scope["headers"])
        # Each worker checks the token again where its route is protected.
        self._access.check(headers, protected=method not in {"GET", "HEAD"})
        if path == "/metrics" and method in {"GET", "HEAD"}:
            return Response(await self._metrics(), content_type=_TEXT)
        return await self._ask_all(method, scope["raw_path"], headers, body)

    async def _metrics(self) -> bytes:
        children = [child for child in self._supervisor.children if child.ready]
        pages = await asyncio.gather(*(ask(child, "GET", b"/metrics") for child in children))
        merged = merge({str(child.number): page for child, (_, page) in zip(children, pages, strict=True)})
        return merged + self._own_metrics()

    def _own_metrics(self) -> bytes:
        supervisor = self._supervisor
        lines = ["# HELP mlx_worker_up 1 while a worker is ready.", "# TYPE mlx_worker_up gauge"]
        lines += [
            f'mlx_worker_up{{worker="{child.number}",device="{child.device}"}} {int(child.ready)}'
            for child in supervisor.children
        ]
        for name, kind, text, value in (
            ("mlx_worker_deaths_total", "counter", "Workers that ended unasked.", supervisor.deaths),
            (
                "mlx_quarantined_inputs",
                "gauge",
                "Inputs that are refused because they ended workers.",
                len(supervisor.quarantine.refused),
            ),
        ):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        return ("\n".join(lines) + "\n").encode()

    async def _ask_all(self, method: str, path: bytes, headers: Any, body: bytes) -> Response:
        """What every worker says, in their order; the worst status of them."""
        children = [child for child in self._supervisor.children if child.ready]
        if not children:
            raise Refusal(503, "No worker is ready: ask again later.", retry_after=1)
        token = headers.get(b"authorization", b"")
        said = await asyncio.gather(*(ask(child, method, path, token, body) for child in children))
        status = max(status for status, _ in said)
        parts = [
            b'{"worker":%d,"status":%d,"answer":%b}' % (child.number, status, answer or b"null")
            for child, (status, answer) in zip(children, said, strict=True)
        ]
        return Response(b'{"workers":[%b]}' % b",".join(parts), status)


async def ask(
    child: Child, method: str, path: bytes, token: bytes = b"", body: bytes = b""
) -> tuple[int, bytes]:
    """The status and the body of a worker's own answer; 503 and nothing when it gives none."""
    url = urlsplit(child.addresses["admin_url"])
    authorization = b"authorization: %b\r\n" % token if token else b""
    request = b"%b %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n%bcontent-length: %d\r\n\r\n%b" % (
        method.encode(),
        path,
        authorization,
        len(body),
        body,
    )
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(url.hostname, url.port, limit=_LARGEST)
            try:
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                answer = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return 503, b""
    return int(head.split(b" ", 2)[1]), answer
