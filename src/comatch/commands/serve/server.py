"""The process that listens. A client that is slow to send its request is cut off."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from comatch.classifier import MANY, load_classifier
from comatch.commands.serve import Address, Limits
from comatch.commands.serve.app import build_app
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.training.run_folder import folder_of

HEADERS = 2**14  # bytes of the headers of a request


class Server(uvicorn.Server):
    """A server that is ready to run, on a socket that is bound already."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self.listening = listening

    @property
    def port(self) -> int:
        number: int = self.listening.getsockname()[1]
        return number

    def start(self) -> None:
        """Answer requests until the process is told to stop."""
        self.run(sockets=[self.listening])


def build_server(run: Path, address: Address, limits: Limits, device: str = "auto") -> Server:
    """Bind the address and load the classifier."""
    listening = bind(address)
    classifier = load_classifier(folder_of(run), choose_device(device))
    classifier.expect(MANY, at_once=1)
    config = uvicorn.Config(
        build_app(classifier, address, limits),
        http=protocol(limits.seconds),
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=limits.connections,
        h11_max_incomplete_event_size=HEADERS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    return Server(config, listening)


def bind(address: Address) -> socket.socket:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, kind, number, _, where = found[0]
        listening = socket.socket(family, kind, number)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()  # from now on, connections wait until the server is ready
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen on {address.host} port {address.port}: "
            f"{getattr(error, 'strerror', None) or error}: choose another --host or --port"
        ) from None
    return listening


def protocol(seconds: float) -> type[asyncio.Protocol]:
    """HTTP for which a connection has so many seconds to send the headers of a request.

    uvicorn waits for them without end. The time of the body is limited by the application.
    """

    class Impatient(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self.forget()

        def watch(self) -> None:
            """Start the clock while headers are incomplete, and stop it once they are there."""
            if self.conn.their_state is not h11.IDLE:
                self.forget()
            elif self.deadline is None:
                self.deadline = self.loop.call_later(seconds, self.transport.close)

        def forget(self) -> None:
            if self.deadline:
                self.deadline.cancel()
            self.deadline = None

    return Impatient
