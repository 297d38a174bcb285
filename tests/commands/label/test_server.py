"""The server: who is answered, what is served, and what the page is told."""

import json
import time

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from comatch.commands.label.pictures import PictureList, Thumbnails
from comatch.commands.label.serve import listen, take_folders
from comatch.commands.label.server import LARGEST, Session, build_app
from comatch.commands.label.store import LabelStore
from comatch.commands.suggest.table import Mark, find_pictures
from comatch.data.images import ImageError
from comatch.data.labels_file import read_labels
from comatch.errors import UserError
from helpers import photograph

TOKEN = "secret"
HOST = "127.0.0.1:8000"
ORIGIN = {"Origin": f"http://{HOST}"}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "pictures"
    (root / "sub").mkdir(parents=True)
    for i, name in enumerate(["a.jpg", "b.png", "sub/c.jpg", "<img src=x onerror=alert(1)>.jpg"]):
        photograph(60, 40, seed=i).save(root / name.replace("/>", ">"))
    (root / "damaged.jpg").write_bytes(b"no image")
    (tmp_path / "outside.jpg").write_bytes((root / "a.jpg").read_bytes())
    return root


@pytest.fixture
def session(folder):
    pictures = PictureList(find_pictures(folder, inside=True))
    return Session(pictures, LabelStore(folder / "labels.csv", folder, pictures.names), None)


@pytest.fixture
def client(session):
    app = build_app(session, TOKEN)
    with TestClient(app, base_url=f"http://{HOST}/", client=("127.0.0.1", 5)) as client:
        yield client


def get(client, path, **headers):
    return client.get(f"/{TOKEN}/{path}", headers=headers)


def act(client, *actions, **headers):
    body = {"tab": "t", "since": 0, "actions": actions}
    return client.post(f"/{TOKEN}/act", json=body, headers={**ORIGIN, **headers})


def number_of(session, name):
    return session.pictures.numbers[name]


# ------------------------------------------------------------------------------- security


@pytest.mark.parametrize(
    "path", ["/", "/other/", "/other/state", "/secre/state", "/static/main.js"]
)
def test_a_missing_or_wrong_token_is_refused(client, path):
    assert client.get(path).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "0.0.0.0:8000", ""]
)
def test_another_host_is_refused(client, host):
    assert get(client, "state", Host=host).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "localhost"])
def test_names_of_this_machine_are_answered(client, host):
    assert get(client, "state", Host=host).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": f"https://{HOST}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(client, session, headers):
    assert get(client, "small/0", **headers).status_code == 403
    assert act(client, {"pictures": [0], "label": "cat"}, **headers).status_code == 403
    assert not session.store.labels()


def test_a_change_needs_an_origin_and_json(client, session):
    body = json.dumps({"tab": "t", "since": 0, "actions": [{"pictures": [0], "label": "cat"}]})
    typed = {"Content-Type": "application/json"}
    assert client.post(f"/{TOKEN}/act", content=body, headers=typed).status_code == 403
    plain = {**ORIGIN, "Content-Type": "text/plain"}
    assert client.post(f"/{TOKEN}/act", content=body, headers=plain).status_code == 415
    assert client.get(f"/{TOKEN}/act").status_code == 405
    assert not session.store.labels()


@pytest.mark.parametrize(
    "path",
    [
        "small/../../outside.jpg",
        "small/%2e%2e%2foutside.jpg",
        "small/-1",
        "small/99",
        "small/a.jpg",
        "small/1e1",
        "large/0/../../../etc/passwd",
        "static/../server.py",
        "static/%2e%2e/server.py",
        "static/..%2fserver.py",
        "static//etc/passwd",
        "static",
        "labels.csv",
        "a.jpg",
    ],
)
def test_only_pictures_and_the_page_are_served(client, path):
    assert get(client, path).status_code in (403, 404)


def test_links_out_of_the_folder_are_left_out(folder, tmp_path):
    (folder / "link.jpg").symlink_to(tmp_path / "outside.jpg")
    away = tmp_path / "away"
    away.mkdir()
    (away / "d.jpg").write_bytes((folder / "a.jpg").read_bytes())
    (folder / "linked").symlink_to(away)
    (folder / "inner.jpg").symlink_to(folder / "a.jpg")
    names = find_pictures(folder, inside=True).names
    assert "inner.jpg" in names
    assert not {"link.jpg", "linked/d.jpg"} & set(names)


def test_a_picture_that_becomes_a_link_is_not_served(folder, tmp_path, client, session):
    (folder / "a.jpg").unlink()
    (folder / "a.jpg").symlink_to(tmp_path / "outside.jpg")
    for size in ("small", "large"):
        assert get(client, f"{size}/{number_of(session, 'a.jpg')}").status_code == 422


def test_a_folder_that_becomes_a_link_is_not_served(folder, tmp_path, client, session):
    number = number_of(session, "sub/c.jpg")
    (folder / "sub").rename(tmp_path / "moved")
    (folder / "sub").symlink_to(tmp_path / "moved")
    assert get(client, f"small/{number}").status_code == 422


def test_answers_forbid_foreign_scripts(client):
    headers = get(client, "").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    refused = client.get("/other/")
    assert "content-security-policy" in refused.headers


def test_names_with_script_are_data(client, session):
    name = "<img src=x onerror=alert(1)>.jpg"
    answer = get(client, "pictures")
    assert answer.headers["content-type"] == "application/json"
    assert name in answer.json()
    label = "</script><script>alert(1)</script>"
    act(client, {"pictures": [0], "label": label})
    assert get(client, "state").json()["classes"] == [label]
    assert "alert(1)" not in get(client, "").text


def test_a_picture_is_encoded_anew(client, session, folder):
    """An HTML page that is called .jpg, or text behind an image, is not served as it is."""
    content = (folder / "a.jpg").read_bytes() + b"<script>alert(1)</script>"
    (folder / "a.jpg").write_bytes(content)
    for size in ("small", "large"):
        answer = get(client, f"{size}/{number_of(session, 'a.jpg')}")
        assert answer.headers["content-type"] == "image/jpeg"
        assert b"script" not in answer.content


# --------------------------------------------------------------------------------- labels


def test_actions_are_written_and_answered(client, session, folder):
    answer = act(
        client, {"pictures": [0, 2], "label": "cat"}, {"pictures": [1], "status": "skipped"}
    )
    assert answer.status_code == 200
    names = session.pictures.names
    assert dict(read_labels(folder / "labels.csv")) == {names[0]: "cat", names[2]: "cat"}
    assert sorted(answer.json()["marks"]) == [[0, "cat", ""], [1, "", "skipped"], [2, "cat", ""]]
    assert act(client, {"undo": True}).json()["marks"][-1] == [1, "", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"tab": 1, "since": "x", "actions": []}',
        b'{"tab": "t", "since": 0, "actions": [{"pictures": [99], "label": "cat"}]}',
        b'{"tab": "t", "since": 0, "actions": [{"pictures": ["a.jpg"], "label": "cat"}]}',
        b'{"tab": "t", "since": 0, "actions": [{"pictures": [true], "label": "cat"}]}',
        b'{"tab": "t", "since": 0, "actions": [{"pictures": [0], "label": ["cat"]}]}',
        b'{"tab": "t", "since": 0, "actions": [{"pictures": [0], "label": "   "}]}',
        b'{"tab": "t", "since": 0, "actions": [{"pictures": [0], "status": "other"}]}',
        b'{"tab": "t", "since": 0, "actions": [7]}',
    ],
)
def test_bad_actions_are_refused_in_one_line(client, session, body):
    headers = {**ORIGIN, "Content-Type": "application/json"}
    answer = client.post(f"/{TOKEN}/act", content=body, headers=headers)
    assert answer.status_code == 400
    assert len(answer.text.splitlines()) == 1
    assert not session.store.labels()


def test_too_large_requests_are_refused(client):
    headers = {**ORIGIN, "Content-Type": "application/json"}
    answer = client.post(f"/{TOKEN}/act", content=b" " * (LARGEST + 1), headers=headers)
    assert answer.status_code == 413


def test_what_another_program_wrote_is_told(client, session, folder):
    version = get(client, "state").json()["version"]
    (folder / "labels.csv").write_text("path,label\na.jpg,owl\n")
    marks = get(client, f"state?since={version}").json()["marks"]
    assert marks == [[number_of(session, "a.jpg"), "owl", ""]]


# ------------------------------------------------------------------------------- pictures


def test_thumbnails_are_small_squares(client, session):
    content = get(client, f"small/{number_of(session, 'a.jpg')}")
    assert content.headers["content-type"] == "image/jpeg"
    assert len(content.content) < 30_000


def test_an_unreadable_picture_is_told_in_one_line(client, session):
    answer = get(client, f"small/{number_of(session, 'damaged.jpg')}")
    assert answer.status_code == 422
    assert "not an image" in answer.text


def test_files_that_appear_and_go(folder, client, session):
    gone = number_of(session, "a.jpg")
    act(client, {"pictures": [gone], "label": "cat"})
    (folder / "a.jpg").unlink()
    photograph(40, 40, seed=9).save(folder / "sub" / "new.jpg")
    session.refresh()
    state = get(client, "state").json()
    assert state["gone"] == [gone]
    assert get(client, "pictures?from=5").json() == ["sub/new.jpg"]
    assert any("no longer" in line for line in state["problems"])
    assert get(client, f"small/{gone}").status_code == 422
    assert act(client, {"pictures": [5], "label": "dog"}).status_code == 200


def test_a_folder_that_goes_is_told(folder, client, session, tmp_path):
    folder.rename(tmp_path / "elsewhere")
    session.refresh()
    (problem,) = session.problems()
    assert "pictures" in problem


def test_kept_thumbnails_are_bounded(tmp_path):
    for i in range(20):
        pixels = np.random.default_rng(i).integers(0, 256, (60, 60, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
    thumbnails = Thumbnails(tmp_path, memory=100_000)
    sizes = [len(thumbnails.small(f"{i}.png")) for i in range(20)]
    assert sum(sizes) > 100_000
    assert thumbnails.bytes == sum(map(len, thumbnails.kept.values())) <= 100_000
    assert thumbnails.small("19.png") == thumbnails.small("19.png")
    with pytest.raises(ImageError):
        thumbnails.small("../outside.png")


def test_a_changed_file_has_a_new_thumbnail(tmp_path):
    photograph(50, 50, seed=1).save(tmp_path / "a.png")
    thumbnails = Thumbnails(tmp_path)
    first = thumbnails.small("a.png")
    time.sleep(0.01)
    photograph(50, 50, seed=2).save(tmp_path / "a.png")
    assert thumbnails.small("a.png") != first


# ---------------------------------------------------------------------------------- start


def test_a_taken_port_is_an_error():
    taken = listen(0)
    try:
        with pytest.raises(UserError, match="port"):
            listen(taken.getsockname()[1])
    finally:
        taken.close()


def test_sub_folders_can_be_labels(images):
    found = find_pictures(images)
    store = LabelStore(images / "labels.csv", images, found.names)
    store.mark({"lying/0.png": Mark("other")})
    take_folders(store, images, found.names)
    labels = store.labels()
    assert labels["lying/0.png"] == "other"
    assert labels["standing/1.png"] == "standing"
    assert set(labels.values()) == {"other", "standing", "lying"}  # not those in unlabeled
