"""Run the application on uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from ingot.support.errors import InputError

_MAX_CONNECTIONS = 1024
_IDLE_SECONDS = 30  # of a connection between requests


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. port: 0 for a free one. Raises InputError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_MAX_CONNECTIONS)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on {host}:{port}", got=str(error), fix="choose another --host or --port"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    application: ASGIApp,
    listener: socket.socket,
    ready: Callable[[str], None] = lambda url: None,
    started: Callable[[uvicorn.Server], None] = lambda server: None,
) -> None:
    """Serve until SIGINT, SIGTERM, or `should_exit` of the server that `started` receives.

    ready: called with the URL when requests are answered."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready(url_of(listener))

    config = uvicorn.Config(
        application, log_level="warning", access_log=False, server_header=False, date_header=False,
        limit_concurrency=_MAX_CONNECTIONS, timeout_keep_alive=_IDLE_SECONDS, timeout_graceful_shutdown=10,
    )  # fmt: skip
    server = Server(config)
    started(server)
    server.run(sockets=[listener])
