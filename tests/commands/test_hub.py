"""Classifiers on the Hugging Face hub: its own client talks to a small hub on this machine."""

import base64
import hashlib
import json
import threading
import time

import huggingface_hub
import pytest
import torch
import uvicorn
from huggingface_hub import ModelCard, constants
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import comatch
from comatch.commands import hub
from comatch.errors import UserError
from comatch.training.run_folder import RunFolder
from helpers import assert_one_line_error, make_classifier, read_json

REVISION = "a" * 40


class Hub:
    """The part of the hub's protocol that a push and a load need. Repositories are in memory."""

    def __init__(self):
        self.files, self.made = {}, []
        self.app = Starlette(
            routes=[
                Route("/api/repos/create", self.create, methods=["POST"]),
                Route("/api/validate-yaml", self.validate, methods=["POST"]),
                Route("/api/models/{repo:path}/preupload/main", self.modes, methods=["POST"]),
                Route("/api/models/{repo:path}/commit/main", self.commit, methods=["POST"]),
                Route("/api/models/{repo:path}/revision/{revision}", self.info),
                Route("/api/models/{repo:path}/tree/{revision}", self.tree),
                Route("/{owner}/{name}/resolve/{revision}/{file:path}", self.content),
            ]
        )

    async def create(self, request):
        asked = await request.json()
        self.made.append(asked)
        if request.headers["authorization"] != "Bearer hf_token":
            return JSONResponse({"error": "Invalid credentials"}, 401)
        return JSONResponse({"url": f"{request.base_url}{asked['organization']}/{asked['name']}"})

    async def validate(self, request):
        return JSONResponse({"errors": [], "warnings": []})

    async def modes(self, request):
        files = (await request.json())["files"]
        modes = [{"path": one["path"], "uploadMode": "regular"} for one in files]
        return JSONResponse({"files": [mode | {"shouldIgnore": False} for mode in modes]})

    async def commit(self, request):
        repo = self.files.setdefault(request.path_params["repo"], {})
        for line in (await request.body()).splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                repo[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        url = f"{request.base_url}{request.path_params['repo']}/commit/{REVISION}"
        return JSONResponse({"commitUrl": url, "commitOid": REVISION})

    async def info(self, request):
        repo = request.path_params["repo"]
        if repo not in self.files or request.path_params["revision"] not in ("main", REVISION):
            missing = "RepoNotFound" if repo not in self.files else "RevisionNotFound"
            return Response("", 404, {"X-Error-Code": missing})
        siblings = [{"rfilename": name} for name in self.files[repo]]
        return JSONResponse({"id": repo, "sha": REVISION, "siblings": siblings})

    async def tree(self, request):
        files = self.files[request.path_params["repo"]]
        return JSONResponse(
            [
                {"type": "file", "path": path, "size": len(content), "oid": oid(content)}
                for path, content in files.items()
            ]
        )

    async def content(self, request):
        names = request.path_params
        content = self.files[f"{names['owner']}/{names['name']}"].get(names["file"])
        if content is None:
            return Response("", 404, {"X-Error-Code": "EntryNotFound"})
        return Response(content, headers={"X-Repo-Commit": REVISION, "ETag": f'"{oid(content)}"'})


def oid(content):
    return hashlib.sha1(content).hexdigest()


@pytest.fixture(scope="module")
def hub_server():
    made = Hub()
    server = uvicorn.Server(uvicorn.Config(made.app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    made.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield made
    server.should_exit = True
    thread.join()


@pytest.fixture
def here(hub_server, monkeypatch, tmp_path):
    """The client uses the hub of the test and an empty cache."""
    hub_server.files.clear()
    template = hub_server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    return hub_server


@pytest.fixture
def run(tmp_path):
    return make_classifier(tmp_path / "run", ["cat", "<b>dog</b>"])


def test_a_classifier_is_pushed_and_loaded_again(here, run):
    assert comatch.push(run, "me/pets") == f"{here.url}/me/pets"
    assert sorted(here.files["me/pets"]) == ["README.md", "config.json", "model.safetensors"]
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    truth = comatch.load(run, device="cpu").predict(images)
    for name in ("hf://me/pets", f"hf://me/pets@{REVISION}"):
        found = comatch.load(name, device="cpu").predict(images)
        assert found.labels == truth.labels
        assert torch.equal(found.probabilities, truth.probabilities)


def test_a_loaded_classifier_needs_no_network_again(here, run, monkeypatch):
    comatch.push(run, "me/pets")
    comatch.load("hf://me/pets", device="cpu")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert comatch.load("hf://me/pets", device="cpu").classes == ["cat", "<b>dog</b>"]


def test_the_command_pushes(here, cli, run):
    code, out, err = cli("push", run, "me/pets", "--private")
    assert code == 0, err
    assert "hf://me/pets" in out
    assert here.made[-1]["name"] == "pets"
    assert "private" in json.dumps(here.made[-1])


def test_the_files_have_the_layout_of_the_hub(run, tmp_path):
    folder = tmp_path / "repo"
    folder.mkdir()
    (run / "summary.json").write_text(
        json.dumps({"method": "comatch", "labels": 40, "unlabelled": 1000, "top1": 0.915})
    )
    hub.package(RunFolder(run), folder, "me/pets")
    config, described = read_json(folder / "config.json"), read_json(run / "model.json")
    assert config == {**described, "library_name": "comatch"}
    assert (
        load_file(folder / "model.safetensors").keys()
        == load_file(run / "model.safetensors").keys()
    )
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "comatch"
    assert card.data.pipeline_tag == "image-classification"
    assert "91.5 %" in card.text
    assert 'comatch.load("hf://me/pets")' in card.text
    assert comatch.load(folder, device="cpu").classes == ["cat", "<b>dog</b>"]


def test_the_card_of_the_run_folder_is_used(run, tmp_path):
    (run / "model_card.md").write_text("# Pets\n\nMade by hand.")
    hub.package(RunFolder(run), tmp_path, "me/pets")
    assert "Made by hand." in ModelCard.load(tmp_path / "README.md").text


def test_errors_have_one_line(here, cli, run, tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="cannot load hf://me/nothing"):
        comatch.load("hf://me/nothing")
    with pytest.raises(UserError, match="cannot load hf://"):
        comatch.load("hf://a b c")
    comatch.push(run, "me/pets")
    with pytest.raises(UserError, match="cannot load hf://"):
        comatch.load("hf://me/pets@other")
    del here.files["me/pets"]["model.safetensors"]
    with pytest.raises(UserError, match="holds no trained network"):
        comatch.load("hf://me/pets")
    capsys.readouterr()  # the client's progress bars
    assert_one_line_error(cli("push", run, "pets"), "OWNER/NAME")
    assert_one_line_error(cli("push", tmp_path / "cache", "me/pets"), "run folder")
    monkeypatch.setenv("HF_TOKEN", "other")
    assert_one_line_error(cli("push", run, "me/pets"), "cannot push")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert_one_line_error(cli("push", run, "me/pets"), "cannot push")


def test_the_client_is_that_of_the_hub():
    assert huggingface_hub.constants.CONFIG_NAME == "config.json"
    assert huggingface_hub.constants.SAFETENSORS_SINGLE_FILE == "model.safetensors"
