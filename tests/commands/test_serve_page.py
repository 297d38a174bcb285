"""The page of `comatch serve` in a real browser: drop an image, see what it is."""

import shutil
import threading
import time

import pytest

from comatch.commands.serve import Address, Limits
from comatch.commands.serve.server import build_server
from helpers import make_classifier, photograph

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TOKEN = "a secret of the test"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    run = make_classifier(tmp_path_factory.mktemp("run"), ["cat", "<script>dog()</script>"])
    server = build_server(run, Address(port=0, token=TOKEN), Limits(), "cpu")
    thread = threading.Thread(target=server.start)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.port}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1200, 380])
def test_an_image_is_shown_with_its_class(address, browser, tmp_path, width):
    photograph(60, 40).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"nothing")
    page = browser.new_page(viewport={"width": width, "height": 800})
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    choose = page.locator("#drop input")
    choose.set_input_files(tmp_path / "a.png")
    page.locator("#token input").fill(TOKEN)  # it appears when the server asks for it
    choose.set_input_files([tmp_path / "a.png", tmp_path / "b.png"])
    page.locator("li").nth(2).wait_for()
    page.locator(".error", has_text="not an image").wait_for()
    found = page.locator("li").nth(1)
    assert found.locator("strong").inner_text() in ("cat", "<script>dog()</script>")
    assert found.locator(".share").count() == 2
    assert found.locator("img").evaluate("image => image.naturalWidth") == 60
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not problems
    page.close()


def test_an_image_is_dropped(address, browser, tmp_path):
    page = browser.new_page()
    page.goto(address)
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(["nothing"], "dropped.png"));
          const drop = document.getElementById("drop");
          drop.dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
        }"""
    )
    page.locator("li", has_text="dropped.png").wait_for()
    page.locator(".error", has_text="token").wait_for()
    page.close()
