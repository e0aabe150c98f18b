"""The listener for gRPC: on the same event loop as the one for HTTP, and with the same limits."""

import os
from typing import Any

from mlx_platform.core.errors import UsageError
from mlx_platform.core.serving_settings import ServingSettings
from mlx_platform.serving.grpc.service import Service
from mlx_platform.serving.http_exchange import RequestIds
from mlx_platform.serving.router import Router


class GrpcListener:
    """Serves the protocol on a port of its own; one message may be as long as the body of a request.

    Raises:
        UsageError: the port cannot be used.
    """

    def __init__(self, router: Router, settings: ServingSettings, ids: RequestIds) -> None:
        # What is wrong with an address is told below, and not in the words of its C library.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        import grpc.aio

        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", settings.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", settings.max_header_bytes),
            ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
            ("grpc.so_reuseport", int(settings.processes > 0)),  # they all listen on one port
        ]
        self._service = Service(router, ids)
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=settings.max_connections)
        self._server.add_generic_rpc_handlers(self._service.handlers())
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self.port = self._server.add_insecure_port(f"{host}:{settings.grpc_port}")
        except RuntimeError as error:
            raise UsageError(
                f"Cannot listen on port {settings.grpc_port} of {settings.host} for gRPC.",
                hint="Take another one with --grpc-port, or 0 for a free one.",
            ) from error
        self.address = f"{host}:{self.port}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, patience: float) -> None:
        """Take nothing new, and give what was accepted so many seconds to end."""
        self._service.close()
        await self._server.stop(patience)
