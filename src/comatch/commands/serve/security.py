"""Who may ask: the names of the server, the origin of a page, and the token."""

import secrets

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = ("/", "/health")  # need no token: they tell nothing and compute nothing


class Guard:
    """Refuse requests that a page of another site makes, and those without the token.

    A browser sends the name of the page's site as Origin. A site whose name was made to point to
    this machine (DNS rebinding) has another name in Host, which `TrustedHostMiddleware` refuses.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not same_origin(headers):
            refusal = error(403, "this page is of another site")
            await refusal(scope, receive, send)
        elif self.token and scope["path"] not in OPEN and not has_token(headers, self.token):
            refusal = error(401, "send the token as `Authorization: Bearer TOKEN`")
            refusal.headers["WWW-Authenticate"] = "Bearer"
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host", "")


def has_token(headers: Headers, token: str) -> bool:
    scheme, _, sent = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and secrets.compare_digest(sent.encode(), token.encode())


class LimitBody:
    """Refuse bodies that are too large, whether or not they say so."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "0") if scope["type"] == "http" else "0"
        if not length.isdecimal() or int(length) > self.most:
            await error(413, too_large(self.most))(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, too_large(self.most))
            return message

        await self.app(scope, counted, send)


def too_large(most: int) -> str:
    return f"the request is larger than {most / 1e6:g} MB"


def error(status: int, message: str) -> JSONResponse:
    """Why a request failed. The connection is closed: some of the request may not be read."""
    return JSONResponse({"error": message}, status, headers={"Connection": "close"})
