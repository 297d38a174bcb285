"""`comatch serve`: predictions over HTTP, and what a broken or hostile request gets."""

import http.client
import io
import json
import signal
import socket
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import comatch
from comatch.commands.serve import Address, Limits, check
from comatch.commands.serve.app import build_app
from comatch.commands.serve.server import build_server
from comatch.errors import UserError
from helpers import assert_one_line_error, make_classifier, photograph, start

TOKEN = "a secret of the test"
LIMITS = Limits(megabytes=0.2, megapixels=1, seconds=5, images=5, waiting=5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_classifier(tmp_path_factory.mktemp("run"), ["lying", "<b>standing</b>"])


@pytest.fixture(scope="module")
def classifier(run):
    return comatch.load(run, device="cpu")


@pytest.fixture
def app(classifier):
    return build_app(classifier, Address(), LIMITS)


@pytest.fixture
def client(app):
    with TestClient(app, "http://localhost:8000") as client:
        yield client


def encoded(image, form="PNG"):
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


@pytest.fixture(scope="module")
def picture():
    return photograph(40, 30)


@pytest.fixture(scope="module")
def image(picture):
    return encoded(picture)


def form_of(*contents):
    return [("image", (f"{i}.png", content)) for i, content in enumerate(contents)]


def bomb(width, height):
    """A PNG of a few bytes that says it is large."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * 10**5)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


# ------------------------------------------------------------------------------ predictions


def test_an_image_is_classified_as_by_predict(client, classifier, picture, image):
    truth = classifier.predict(picture)
    by_body = client.post("/predict", content=image).json()
    by_form = client.post("/predict", files=form_of(image)).json()
    assert by_body == by_form
    assert by_body["label"] == truth.labels[0]
    assert list(by_body["probabilities"]) == classifier.classes
    p = truth.probabilities[0].tolist()
    assert list(by_body["probabilities"].values()) == pytest.approx(p, abs=1e-5)
    assert by_body["probability"] == max(by_body["probabilities"].values())


def test_a_batch_has_a_prediction_or_an_error_for_each_image(client, image):
    other = encoded(photograph(20, 20, seed=3), "JPEG")
    found = client.post("/predict/batch", files=form_of(image, b"nothing", other)).json()
    first, broken, last = found["predictions"]
    assert broken == {"name": "1.png", "error": "not an image"}
    assert first == {"name": "0.png", **client.post("/predict", content=image).json()}
    assert last == {"name": "2.png", **client.post("/predict", content=other).json()}


def test_requests_at_the_same_time_get_their_own_answers(classifier):
    app = build_app(classifier, Address(), LIMITS._replace(waiting=100))
    images = [encoded(photograph(16, 16, seed=i)) for i in range(24)]
    found = {}
    with TestClient(app, "http://localhost") as client:
        alone = [client.post("/predict", content=one).json() for one in images]

        def ask(i):
            found[i] = client.post("/predict", content=images[i]).json()

        threads = [threading.Thread(target=ask, args=[i]) for i in range(len(images))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i, one in enumerate(alone):
        assert found[i]["probability"] == pytest.approx(one["probability"], abs=1e-5)


def test_health_and_metrics(client, image):
    assert client.get("/health").json() == {"status": "ok"}
    label = client.post("/predict", content=image).json()["label"]
    client.post("/predict", content=b"nothing")
    text = client.get("/metrics").text
    assert 'comatch_requests_total{path="/predict",status="200"} 1.0' in text
    assert 'comatch_requests_total{path="/predict",status="422"} 1.0' in text
    assert f'comatch_images_total{{label="{label}"}} 1.0' in text
    assert "comatch_request_seconds_count 2.0" in text
    assert "comatch_requests_running 0.0" in text


def test_the_page_runs_only_its_own_script(client):
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    nonce = policy.partition("script-src 'nonce-")[2].partition("'")[0]
    assert f'<script nonce="{nonce}">' in page.text
    assert "default-src 'none'" in policy
    assert nonce not in client.get("/").text  # it is new each time


# ------------------------------------------------------------------------- broken requests


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 422, "an empty file"),
        (b"nothing", 422, "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422, "not an image"),
        (bomb(900, 900), 422, "cannot be read"),  # it has fewer rows than it says
        (bomb(1001, 1000), 422, "too large (1001 x 1000 pixels)"),
        (bomb(60_000, 60_000), 422, "cannot be read"),
        (b"\0" * 300_000, 413, "larger than 0.2 MB"),
    ],
)
def test_a_broken_image_is_refused(client, image, content, status, message):
    answer = client.post("/predict", content=content)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert client.post("/predict", content=image).status_code == 200


def test_a_truncated_image_is_refused(client, image):
    assert client.post("/predict", content=image[: len(image) // 2]).status_code == 422


def test_a_large_jpeg_is_refused_before_it_is_reduced(client):
    large = encoded(Image.new("L", (4000, 2000)), "JPEG")
    assert len(large) < LIMITS.bytes
    assert client.post("/predict", content=large).status_code == 422


def test_a_body_without_a_length_is_limited_too(client):
    def chunks():
        for _ in range(100):
            yield b"\0" * 10_000

    for path in ("/predict", "/predict/batch"):
        answer = client.post(path, content=chunks(), headers={"Content-Type": "image/png"})
        assert answer.status_code in (400, 413)
    assert client.post("/predict", content=chunks()).status_code == 413


@pytest.mark.parametrize(
    ("files", "message"),
    [(0, "send images"), (6, "Too many files")],
)
def test_a_batch_has_some_images_but_not_too_many(client, image, files, message):
    answer = client.post("/predict/batch", files=form_of(*[image] * files))
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_two_images_in_a_request_for_one(client, image):
    assert client.post("/predict", files=form_of(image, image)).status_code == 400


def test_a_broken_form_is_refused(client):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for content in (b"nothing", b"--x\r\nbroken", b"--y--"):
        answer = client.post("/predict/batch", content=content, headers=headers)
        assert answer.status_code == 400
    headers = {"Content-Type": "multipart/form-data"}
    assert client.post("/predict", content=b"x", headers=headers).status_code == 400


def test_unknown_addresses_and_methods(client):
    assert client.get("/nothing").status_code == 404
    assert client.get("/predict").status_code == 405


def test_more_images_than_may_wait(classifier, image):
    app = build_app(classifier, Address(), LIMITS._replace(waiting=1))
    with TestClient(app, "http://localhost") as client:
        answer = client.post("/predict/batch", files=form_of(*[image] * 5))
        assert answer.status_code in (200, 503)
        assert client.post("/predict", content=image).status_code == 200


def test_a_network_that_fails_is_no_end(classifier, image, monkeypatch):
    app = build_app(classifier, Address(), LIMITS)

    def fail(pixels):
        raise RuntimeError("out of memory")

    with TestClient(app, "http://localhost", raise_server_exceptions=False) as client:
        with monkeypatch.context() as broken:
            broken.setattr(classifier, "predict", fail)
            answer = client.post("/predict", content=image)
            assert answer.status_code == 500
            assert "out of memory" not in answer.text
        assert client.post("/predict", content=image).status_code == 200


def test_a_network_that_is_too_slow(classifier, image, monkeypatch):
    predict = classifier.predict
    monkeypatch.setattr(classifier, "predict", lambda x: time.sleep(0.3) or predict(x))
    app = build_app(classifier, Address(), LIMITS._replace(seconds=0.1))
    with TestClient(app, "http://localhost") as client:
        assert client.post("/predict", content=image).status_code == 503


# ------------------------------------------------------------------------------- security


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_another_name_of_the_server_is_refused(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
def test_its_own_names_are_accepted(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://localhost:8000", 200), ("http://evil.example", 403), ("null", 403)],
)
def test_a_page_of_another_site_is_refused(client, image, origin, status):
    answer = client.post("/predict", content=image, headers={"Origin": origin})
    assert answer.status_code == status


def test_a_token_is_needed_if_there_is_one(classifier, image):
    app = build_app(classifier, Address("0.0.0.0", 80, TOKEN), LIMITS)
    with TestClient(app, "http://anything") as client:
        for path in ("/predict", "/predict/batch", "/metrics", "/nothing"):
            for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": TOKEN}):
                assert client.post(path, headers=headers).status_code == 401
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code == 200
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/predict", content=image, headers=right).status_code == 200


def test_other_machines_need_a_token():
    for host in ("127.0.0.1", "127.0.0.2", "localhost", "::1"):
        check(Address(host), Limits())
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(UserError, match="add --token"):
            check(Address(host), Limits())
        check(Address(host, 80, TOKEN), Limits())
    with pytest.raises(UserError, match="at least 8 characters"):
        check(Address(token="short"), Limits())
    with pytest.raises(UserError, match="above 0"):
        check(Address(), Limits(seconds=0))


def test_errors_of_the_command(cli, run):
    assert_one_line_error(cli("serve", run, "--host", "0.0.0.0"), "add --token")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert_one_line_error(cli("serve", run, "--port", port), f"port {port}", "--port")
    assert_one_line_error(cli("serve", run, "--host", "no.such.host.invalid", "--token", TOKEN), "")


# ------------------------------------------------------------------------ a real server


@pytest.fixture(scope="module")
def server(run):
    """A server on loopback that gives a request one second."""
    server = build_server(run, Address(port=0), LIMITS._replace(seconds=1), "cpu")
    thread = threading.Thread(target=server.start)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server
    server.should_exit = True
    thread.join()


def send(server, text):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    connection.sendall(text)
    return connection


def answer_to(server, text):
    """All that the server sends until it closes the connection."""
    with send(server, text) as connection:
        found = b""
        while some := connection.recv(4096):
            found += some
        return found


def works(server, image):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/predict", image)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status == 200 and "label" in content


HOST = b"Host: localhost\r\n"


@pytest.mark.slow
def test_slow_and_cut_connections_are_closed(server, image):
    assert works(server, image)
    idle = [send(server, b"") for _ in range(5)]
    idle += [send(server, b"POST /predict HTTP/1.1\r\n" + HOST) for _ in range(5)]
    began = time.monotonic()
    body = b"POST /predict HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\nbegin"
    assert answer_to(server, body).startswith(b"HTTP/1.1 408")
    form = b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x\r\n"
    slow = b"POST /predict/batch HTTP/1.1\r\n" + HOST + form
    assert answer_to(server, slow).startswith(b"HTTP/1.1 408")
    for connection in idle:
        assert connection.recv(100) == b""  # closed
        connection.close()
    assert time.monotonic() - began < 6
    for text in (body, slow, b"GET / HTTP/1.1\r\n"):
        send(server, text).close()  # cut
    assert works(server, image)


@pytest.mark.slow
def test_what_is_no_http_is_refused(server, image):
    random = np.random.default_rng(0)
    for text in (random.bytes(1000), b"GET / HTTP/1.1\r\nX: " + b"x" * 10**5, b"\r\n" * 100):
        assert answer_to(server, text)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")
    assert works(server, image)


@pytest.mark.slow
def test_an_upload_that_is_cut_does_not_stay(server, image):
    for _ in range(20):
        text = b"POST /predict HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(image)
        send(server, text + image[: len(image) // 2]).close()
    assert works(server, image)


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped(run, image, tmp_path):
    process = start("serve", run, "--port", 0, "--device", "cpu", cwd=tmp_path)
    try:
        line = process.stdout.readline()
        port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/predict", image)
        assert connection.getresponse().status == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
