"""A trained classifier behind an HTTP address, with a page to drop images on."""

import importlib.util
import ipaddress
from typing import NamedTuple

from comatch.config import require

LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")


class Address(NamedTuple):
    """Where the server listens, and the token that a client must send."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def names(self) -> list[str]:
        """What a client may call the server. With a token, any name will do."""
        return ["*"] if self.token else [*LOCAL, self.host]


class Limits(NamedTuple):
    """What one request may cost."""

    megabytes: float = 20
    megapixels: float = 50  # of each image
    seconds: float = 30
    images: int = 100
    waiting: int = 200  # images of all requests together
    connections: int = 200

    @property
    def bytes(self) -> int:
        return int(self.megabytes * 1e6)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1e6)


def check(address: Address, limits: Limits) -> None:
    """Raise an error if the server cannot or must not be started so."""
    missing = [
        name
        for name in ("starlette", "uvicorn", "python_multipart", "prometheus_client")
        if not importlib.util.find_spec(name)
    ]
    require(not missing, f'serve needs {", ".join(missing)}: pip install "comatch[web]"')
    require(
        address.local or bool(address.token),
        f"--host {address.host} can be reached from other machines: add --token, a secret that "
        "clients must send",
    )
    require(
        address.token is None or len(address.token) >= 8,
        "--token: take at least 8 characters, as of `openssl rand -hex 16`",
    )
    require(
        min(limits.megabytes, limits.megapixels, limits.seconds) > 0,
        "the limits --max-mb, --max-megapixels and --timeout must be above 0",
    )
