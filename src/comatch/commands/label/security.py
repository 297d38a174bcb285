"""Who may ask the server: only a page that it served itself, on this machine.

The address has a random token. A name of another host is refused, so that a web site cannot reach
the server under its own name (DNS rebinding), and so is a request that another site makes.
"""

import secrets
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Passes a request on if it is allowed, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        why = refusal(Request(scope), self.token)
        answer: ASGIApp = refuse(why) if why else self.app
        await answer(scope, receive, send_with_headers)


def refuse(why: str) -> Response:
    return PlainTextResponse(why, 403)


def refusal(request: Request, token: str) -> str:
    """Why a request is refused; nothing if it is allowed."""
    host = request.headers.get("host", "")
    if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
        return "this address is for this machine only"
    given = request.url.path.split("/")[1]
    if not secrets.compare_digest(given.encode(), token.encode()):
        return "the address is incomplete: use the one that comatch label printed"
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin)[:2] != ("http", host):
        return "another site may not use this page"
    if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return "another site may not use this page"
    if request.method != "GET" and origin is None:
        return "changes are made by the page only"
    return ""
