"""The server of the page: pictures, labels, and what the background process learned."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from comatch.commands.label.background import Background
from comatch.commands.label.pictures import PictureList, Thumbnails
from comatch.commands.label.security import Guard
from comatch.commands.label.store import LabelStore, class_name
from comatch.commands.suggest.table import NONE, SKIPPED, Mark
from comatch.data.images import ImageError
from comatch.errors import UserError

STATIC = Path(__file__).parent / "static"
DECODERS = 3  # pictures that are decoded at the same time
REFRESH = 5.0  # seconds between looks at the folder
LARGEST = 2**22  # bytes of a request
STATUSES = ("", SKIPPED, NONE)


class Session:
    """What the server knows. Its methods may be called by several threads."""

    def __init__(
        self, pictures: PictureList, store: LabelStore, background: Background | None
    ) -> None:
        self.pictures, self.store, self.background = pictures, store, background
        self.thumbnails = Thumbnails(pictures.root)
        self.taught = -1  # version of the marks that the background process has
        if background:
            background.add_names(pictures.names)
            self.teach()

    def state(self, since: int) -> dict[str, Any]:
        """What changed since a version of the marks."""
        self.store.sync()
        self.teach()
        numbers, classes = self.pictures.numbers, self.store.classes
        version = self.store.version
        marks = [
            [numbers[name], mark.label, mark.status]
            for name, mark in self.store.since(since).items()
            if name in numbers
        ]
        background = self.background
        return {
            "version": version,
            "marks": marks,
            "classes": classes,
            "pictures": len(self.pictures.names),
            "gone": sorted(self.pictures.gone),
            "unread": sorted(background.unread) if background else [],
            "unsaved": len(self.store.pending),
            "problems": self.problems(),
            "notice": self.store.notice,
            "progress": background.progress if background else None,
            "order": background.order_version if background else 0,
            "model": background.model_version if background else 0,
            "file": str(self.store.path),
            "folder": self.pictures.root.resolve().name,
        }

    def problems(self) -> list[str]:
        found = [self.store.problem, self.pictures.problem]
        found += [self.background.problem] if self.background else []
        if self.pictures.left_out:
            found.append(
                f"{self.pictures.left_out} files are left out: a CSV file cannot hold their names"
            )
        if lost := [n for n in self.pictures.gone if self.pictures.names[n] in self.store.marks]:
            found.append(f"{len(lost)} labelled pictures are no longer in the folder")
        return [one for one in found if one]

    def teach(self) -> None:
        """Tell the background process the marks, if they changed."""
        if self.background is None or self.store.version == self.taught:
            return
        self.taught = self.store.version
        numbers = self.pictures.numbers
        marks = dict(self.store.marks)
        self.background.set_marks({numbers[n]: m.label or None for n, m in marks.items()})

    def act(self, tab: str, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            if action.get("undo"):
                self.store.undo(tab)
            else:
                mark = mark_from(action)
                names = [self.pictures.names[number] for number in numbers_in(action, self)]
                self.store.mark(dict.fromkeys(names, mark), tab)

    def refresh(self) -> None:
        new = self.pictures.refresh()
        if new:
            self.store.add_names(new)
            if self.background:
                self.background.add_names(new)


def mark_from(action: dict[str, Any]) -> Mark:
    """The mark that an action of the page sets."""
    label, status = action.get("label", ""), action.get("status", "")
    if not isinstance(label, str) or status not in STATUSES:
        raise UserError("a mark is a class or a status")
    return Mark(class_name(label)) if label else Mark("", status)


def numbers_in(action: dict[str, Any], session: Session) -> list[int]:
    numbers = action.get("pictures")
    if not isinstance(numbers, list) or not all(
        type(n) is int and 0 <= n < len(session.pictures.names) for n in numbers
    ):
        raise UserError("an action names pictures by their numbers")
    return numbers


# -------------------------------------------------------------------------------- requests


async def index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-store"})


async def pictures(request: Request) -> Response:
    """Names of the pictures from a number on."""
    names = request.app.state.session.pictures.names
    return JSONResponse(names[whole(request.query_params.get("from")) :])


async def state(request: Request) -> Response:
    session = request.app.state.session
    since = whole(request.query_params.get("since"))
    return JSONResponse(await to_thread.run_sync(session.state, since))


async def act(request: Request) -> Response:
    """Carry out actions of a tab and answer with what changed."""
    session = request.app.state.session
    if request.headers.get("content-type") != "application/json":
        return PlainTextResponse("JSON is needed", 415)
    if whole(request.headers.get("content-length"), LARGEST + 1) > LARGEST:
        return PlainTextResponse("too much at once", 413)
    try:
        asked = json.loads(await request.body())
        tab, actions, since = str(asked["tab"]), list(asked["actions"]), int(asked["since"])
        await to_thread.run_sync(session.act, tab, actions)
    except UserError as error:
        return PlainTextResponse(str(error), 400)
    except (ValueError, TypeError, KeyError, AttributeError):
        return PlainTextResponse("this is no action of the page", 400)
    return JSONResponse(await to_thread.run_sync(session.state, since))


async def order(request: Request) -> Response:
    background = request.app.state.session.background
    return JSONResponse(background.order if background else [])


async def model(request: Request) -> Response:
    background = request.app.state.session.background
    content = background.model if background else b"null"
    return Response(content, media_type="application/json")


async def small(request: Request) -> Response:
    return await picture(request, request.app.state.session.thumbnails.small)


async def large(request: Request) -> Response:
    return await picture(request, request.app.state.session.thumbnails.large)


async def picture(request: Request, make: Callable[[str], bytes]) -> Response:
    """A picture by its number; nothing of a file is served but its pixels."""
    names, number = request.app.state.session.pictures.names, request.path_params["number"]
    if number >= len(names):
        return PlainTextResponse("there is no such picture", 404)
    try:
        content = await to_thread.run_sync(make, names[number], limiter=request.app.state.decoders)
    except ImageError as error:
        return PlainTextResponse(f"cannot be read: {error}", 422)
    return Response(
        content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=600"}
    )


def whole(text: str | None, default: int = 0) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else default


# ------------------------------------------------------------------------------------- app


def build_app(session: Session, token: str) -> Starlette:
    """The application; everything in it is below /TOKEN."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.decoders = CapacityLimiter(DECODERS)
        watching = asyncio.create_task(watch(session))
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    routes = [
        Route("/", index),
        Route("/pictures", pictures),
        Route("/state", state),
        Route("/act", act, methods=["POST"]),
        Route("/order", order),
        Route("/model", model),
        Route("/small/{number:int}", small),
        Route("/large/{number:int}", large),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(Guard, token=token)],
        lifespan=lifespan,
    )
    app.state.session = session
    return app


async def watch(session: Session) -> None:
    """Look at the folder from time to time."""
    while True:
        await asyncio.sleep(REFRESH)
        await to_thread.run_sync(session.refresh)
