"""From a folder to a page that is served until Ctrl-C."""

import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from comatch.commands.label.background import Background
from comatch.commands.label.pictures import PictureList
from comatch.commands.label.server import Session, build_app
from comatch.commands.label.store import LabelStore, class_name
from comatch.commands.suggest.table import EMPTY, Mark, find_pictures
from comatch.data.image_files import layout_of
from comatch.data.labels_file import UNLABELLED_NAMES
from comatch.errors import UserError

HOST = "127.0.0.1"
TOKEN = 16  # bytes


def serve(
    folder: Path,
    labels_file: Path | None = None,
    *,
    from_folders: bool = False,
    port: int = 0,
    encoder: str | None = None,
    init: str | None = None,
    device: str = "auto",
    browser: bool = True,
    ready: Callable[[str, Session], None] = lambda address, session: None,
) -> Session:
    """Serve the page until Ctrl-C; `ready` is given its address. Return what is known then."""
    listening = listen(port)
    found = find_pictures(folder, inside=True)
    path = (labels_file or found.labels_file).resolve()  # of a link, the file itself is replaced
    pictures = PictureList(found)
    store = LabelStore(path, folder, pictures.names)
    if store.problem:
        raise UserError(store.problem)
    if from_folders:
        take_folders(store, folder, pictures.names)
    background = Background(folder, encoder, init, device)
    session = Session(pictures, store, background)
    token = secrets.token_urlsafe(TOKEN)
    address = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
    config = uvicorn.Config(
        build_app(session, token), log_level="error", access_log=False, timeout_graceful_shutdown=2
    )
    try:
        ready(address, session)
        if browser:
            webbrowser.open(address)
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        background.close()
        listening.close()
    return session


def listen(port: int) -> socket.socket:
    """A socket on this machine only; with port 0, on any free port."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UserError(
            f"port {port} cannot be used ({error.strerror}): leave --port out to take a free one"
        ) from None
    return listening


def take_folders(store: LabelStore, folder: Path, names: list[str]) -> None:
    """Label pictures without a mark by the sub-folder that they are in."""
    prefix = layout_of(folder).prefix
    marks = {}
    for name in names:
        label, _, rest = name.removeprefix(prefix).partition("/")
        usable = rest and name.startswith(prefix) and label.lower() not in UNLABELLED_NAMES
        if usable and store.of(name) == EMPTY:
            marks[name] = Mark(class_name(label))
    store.mark(marks)
