"""The page in a real browser: `make browser` installs chromium and runs this."""

import csv
import re
import shutil
import signal
import time

import pytest
import timm
import torch

from comatch.data.labels_file import read_labels
from helpers import TINY_WORDS, make_images, photograph, start

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NET = "mobilenetv3_small_050"
SCRIPT = "<img src=x onerror=document.title='hacked'>"

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (make browser)"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1000, "height": 700})
    page = context.new_page()
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    yield page
    assert not page.errors
    assert page.title() == "Label pictures"  # no script of a name has run
    context.close()


@pytest.fixture
def folder(tmp_path):
    """Pictures without labels, of stripes that stand and that lie in turn."""
    made = make_images(tmp_path / "made", per_class=0, unlabelled=70, test=0)
    shutil.move(made / "unlabeled", tmp_path / "pictures")
    torch.save(timm.create_model(NET).state_dict(), tmp_path / "weights.pth")
    return tmp_path / "pictures"


@pytest.fixture
def serve(folder):
    """Start the command; return its process and the address of the page."""
    processes = []

    def begin():
        words = ["--no-browser", "--encoder", NET, "--init", folder.parent / "weights.pth"]
        process = start("label", folder, *words, cwd=folder.parent)
        processes.append(process)
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                return process, found[0]
        raise AssertionError(process.stderr.read())

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def truth(name):
    return ("standing", "lying")[int(re.search(r"(\d+)\.jpg", name)[1]) % 2]


def rows(folder):
    """Label and status of each picture in the file."""
    table = folder / "labels.csv"
    if not table.exists():
        return {}
    with table.open(newline="") as file:
        return {row["path"]: (row["label"], row.get("status", "")) for row in csv.DictReader(file)}


def labels(folder):
    return {name: label for name, (label, _) in rows(folder).items() if label}


def statuses(folder):
    return sorted(status for _, status in rows(folder).values() if status)


def wait_until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def focused(page):
    """The name of the picture that the keyboard is on."""
    number = page.locator("#grid").get_attribute("aria-activedescendant")
    return page.locator(f"#{number}").get_attribute("aria-label").split(",")[0]


def give_focused(page, keys):
    page.keyboard.press(keys[truth(focused(page))])


def type_class(page, name):
    page.keyboard.press("c")
    page.keyboard.type(name)
    page.keyboard.press("Enter")


def opened(page, address):
    page.goto(address)
    page.wait_for_selector(".tile")


def test_from_a_folder_to_a_classifier(page, serve, folder):
    server, address = serve()
    opened(page, address)

    # By typing: both classes exist then.
    given = {}
    while len(given) < 2:
        name = truth(focused(page))
        given[name] = str(len(given) + 1) if name not in given else given[name]
        type_class(page, name)
    for _ in range(10):  # by keys
        give_focused(page, given)
    wait_until(lambda: len(labels(folder)) >= 12)

    # By clicks: several pictures of one class at a time.
    tiles = page.locator(".tile")
    names = [tiles.nth(i).get_attribute("aria-label") for i in range(12)]
    chosen = [i for i, name in enumerate(names) if truth(name) == "lying"][:4]
    for i in chosen:
        tiles.nth(i).click()
    assert page.locator(".tile[aria-selected=true]").count() == len(chosen)
    page.locator("#classes button", has_text="lying").click()
    wait_until(lambda: len(labels(folder)) >= 12 + len(chosen))

    # The server is killed; nothing that was given is lost.
    before = labels(folder)
    server.send_signal(signal.SIGKILL)
    server.wait()
    page.get_by_text("is it still running").wait_for()
    assert labels(folder) == before
    page.on("dialog", lambda dialog: dialog.accept())
    _, address = serve()
    opened(page, address)
    page.get_by_text(f"{len(before)} of 70 labelled").wait_for()
    while len(labels(folder)) < 40:
        count = len(labels(folder))
        give_focused(page, given)
        wait_until(lambda count=count: len(labels(folder)) > count)
    assert all(truth(name) == label for name, label in labels(folder).items())

    # The classifier of the background: its accuracy, and a group to confirm.
    page.get_by_text("Accuracy about").wait_for(timeout=400_000)
    page.get_by_role("button", name="Confirm", exact=True).click()
    page.wait_for_selector("#group:not([hidden])")
    selected = page.locator(".tile[aria-selected=true]").count()
    assert selected
    page.keyboard.press("y")
    wait_until(lambda: len(labels(folder)) > 40)
    page.keyboard.press("z")
    wait_until(lambda: len(labels(folder)) == 40)

    # Train and predict.
    words = ["--recipe", "folder", "--steps", 2, "--device", "cpu", "--out", "run", *TINY_WORDS]
    words += ["--set", "mu=1"]
    assert start("train", folder, *words, cwd=folder.parent).wait(120) == 0
    assert start("predict", "run", folder, "--out", "p.csv", cwd=folder.parent).wait(120) == 0
    assert len(read_labels(folder.parent / "p.csv")) == 70


def test_skip_none_undo_zoom_and_search_by_keyboard(page, serve, folder):
    _, address = serve()
    opened(page, address)
    first = focused(page)
    page.keyboard.press("s")
    wait_until(lambda: statuses(folder) == ["skipped"])
    assert focused(page) != first
    page.keyboard.press("n")
    wait_until(lambda: statuses(folder) == ["none of these", "skipped"])
    page.keyboard.press("z")
    wait_until(lambda: statuses(folder) == ["skipped"])
    page.keyboard.press("z")
    wait_until(lambda: statuses(folder) == [])
    wait_until(lambda: focused(page) == first)  # it is back where it was

    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator(".tile[aria-selected=true]").count() == 3
    page.keyboard.press("Escape")
    assert page.locator(".tile[aria-selected=true]").count() == 0

    page.keyboard.press("Enter")
    page.wait_for_selector("#zoom[open]")
    shown = page.inner_text("#zoom-text")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#zoom-text") != shown
    page.keyboard.press("Escape")
    assert not page.locator("#zoom").is_visible()
    page.wait_for_timeout(300)  # the page gives the focus back to the grid

    type_class(page, "cat")
    wait_until(lambda: "cat" in labels(folder).values())
    page.get_by_role("button", name="Labelled").click()
    page.keyboard.press("/")
    page.keyboard.type("dog")
    assert page.locator(".tile").count() == 0
    page.locator("#search").fill("cat")
    assert page.locator(".tile").count() == 1


def test_drag_selects_what_the_frame_touches(page, serve, folder):
    _, address = serve()
    opened(page, address)
    boxes = [page.locator(".tile").nth(i).bounding_box() for i in range(2)]
    page.mouse.move(boxes[0]["x"] + 20, boxes[0]["y"] + 20)
    page.mouse.down()
    page.mouse.move(boxes[1]["x"] + 20, boxes[1]["y"] + 40, steps=4)
    page.mouse.up()
    assert page.locator(".tile[aria-selected=true]").count() == 2


def test_script_in_names_is_text(page, serve, folder):
    photograph(30, 30).save(folder / "<img src=x onerror=document.title='hacked'>.png")
    _, address = serve()
    opened(page, address)
    page.locator("#search").fill("onerror")
    page.wait_for_selector(".tile")
    page.locator("#grid").focus()
    type_class(page, SCRIPT)
    page.get_by_role("button", name="Labelled").click()
    page.get_by_text(SCRIPT).first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector("#zoom[open]")
    wait_until(lambda: SCRIPT in labels(folder).values())


def test_the_page_fits_a_phone(browser, serve, folder):
    _, address = serve()
    page = browser.new_context(viewport={"width": 360, "height": 640}, has_touch=True).new_page()
    opened(page, address)
    type_class(page, "a class with a name that is rather long for a phone")
    page.locator("#classes button").wait_for()
    sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert sizes[0] <= sizes[1]
    assert page.locator("#grid").bounding_box()["height"] > 200
    page.locator(".tile").nth(1).tap()
    assert page.locator(".tile[aria-selected=true]").count() == 1


def test_controls_have_names(page, serve):
    """What a screen reader says: every control has a name, every tile a place in the list."""
    _, address = serve()
    opened(page, address)
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, select, [role=option]')].filter(one => "
        "!(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length))"
        ".map(one => one.outerHTML)"
    )
    assert nameless == []
    tile = page.locator(".tile").first
    assert tile.get_attribute("role") == "option"
    assert tile.get_attribute("aria-setsize") == "70"
    assert page.locator("#grid").get_attribute("aria-multiselectable") == "true"
