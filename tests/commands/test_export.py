"""A classifier in one file says the same without comatch, and a file that does not is not kept."""

import json
import logging
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import onnxruntime
import pytest
import torch

import comatch
from comatch import api
from comatch.commands import export as portable
from comatch.errors import UserError
from comatch.nets import Network, build_encoder
from comatch.training.run_folder import RunFolder
from helpers import TINY, photograph

KINDS = ["pt2", "onnx"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on digits that was found to be too sure, and whose images are seen without edges."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    comatch.train(
        "digits", labels=20, out=out, steps=12, device="cpu", progress=False, settings=TINY
    )
    RunFolder(out).describe("temperature", 2.5)
    RunFolder(out).describe("resize", 12)
    return out


@pytest.fixture(scope="module")
def classifier(run):
    return comatch.load(run, "cpu")


@pytest.fixture(scope="module")
def digits(run):
    return api.open_data(RunFolder(run).recipe(), Path("data")).test.images


@pytest.fixture(scope="module", params=KINDS)
def exported(request, run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return comatch.export(run, folder / f"model.{request.param}")


def ask(path, images):
    """As a stranger to comatch would."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path)
        (image,), (p,) = session.get_inputs(), session.get_outputs()
        assert (image.name, image.shape, p.name) == ("images", ["N", 3, 8, 8], "probabilities")
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    with torch.no_grad():
        return torch.export.load(path).module()(images)


@pytest.mark.parametrize("count", [1, 7, 359])
def test_it_says_what_the_classifier_says(exported, classifier, digits, count):
    truth = classifier.predict(digits[:count]).probabilities
    torch.testing.assert_close(ask(exported.path, digits[:count]), truth, atol=1e-5, rtol=0)
    assert exported.difference < 1e-5


def test_temperature_and_normalisation_are_inside(exported, run, digits):
    said = ask(exported.path, digits)
    for change in ({"temperature": 1.0}, {"mean": [0.5] * 3}, {"std": [0.5] * 3}):
        described = RunFolder(run).description() | change
        other = api.Classifier(comatch.load(run, "cpu").net, described, torch.device("cpu"))
        assert (other.predict(digits).probabilities - said).abs().max() > 0.01, change


def test_it_is_one_file_that_tells_its_classes_and_sizes(exported):
    assert list(exported.path.parent.iterdir()) == [exported.path]
    if exported.path.suffix == ".onnx":
        told = onnxruntime.InferenceSession(exported.path).get_modelmeta().custom_metadata_map
    else:
        told = {"comatch": ""}
        torch.export.load(exported.path, extra_files=told)
    about = json.loads(told["comatch"])
    assert about == {
        "classes": [str(digit) for digit in range(10)],
        "image_size": 8,
        "resize": 12,
        "squaring": portable.SQUARING,
    }


def test_it_names_no_folder_of_this_machine(exported):
    content = exported.path.read_bytes()
    assert b"encoder" in content  # nothing is packed: what is there can be found
    for place in (Path(comatch.__file__).parent, Path(torch.__file__).parent, exported.path.parent):
        assert str(place).encode() not in content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("net", ["wrn-28-2", "resnet18", "vit_tiny_patch16_224"])
def test_networks(net, kind, tmp_path):
    """The wide ResNet by hand and two of timm's, with a projector that stays behind."""
    torch.manual_seed(0)
    network = Network(build_encoder(net, 32, norm_momentum=1.0), 5, embedding_dim=16)
    network(torch.randn(64, 3, 32, 32))  # batch norm without statistics would let nothing through
    about = {"net": net, "stem": "auto", "image_size": 32, "embedding_dim": 16}
    about |= {"classes": list("abcde"), "mean": [0.5] * 3, "std": [0.25] * 3}
    RunFolder(tmp_path).write_model(network, about)
    done = comatch.export(tmp_path, tmp_path / f"model.{kind}")
    assert done.difference < 1e-5
    assert b"projector" not in done.path.read_bytes()
    p = comatch.load(tmp_path, "cpu").predict(portable.random_images(7, 32)).probabilities
    assert p.std(0).max() > 1e-3  # or nothing would have been compared


# ------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_says_one_line_and_nothing_else(run, tmp_path, kind):
    """In a process of its own: exporters write to the terminal in more than one way."""
    words = ["export", run, "--out", f"model.{kind}"]
    done = subprocess.run(
        [sys.executable, "-m", "comatch", *map(str, words)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    megabytes = (tmp_path / f"model.{kind}").stat().st_size / 1e6
    expected = rf"model\.{kind}: {megabytes:.1f} MB, uint8 \[N, 3, 8, 8\] -> probabilities of 10 "
    expected += r"classes; differs from the run's classifier by at most \de-\d\d\n"
    assert re.fullmatch(expected, done.stdout), done.stdout


def test_what_exporters_remark_stays_with_them(cli, run, monkeypatch, caplog):
    """Which there are, and where they appear, depends on the versions of torch and onnxscript."""
    trace = portable.trace

    def remark(classifier):
        print("chatter")
        warnings.warn("chatter", FutureWarning, stacklevel=1)
        logging.getLogger("torch.onnx").error("chatter")
        return trace(classifier)

    monkeypatch.setattr(portable, "trace", remark)
    code, out, err = cli("export", run, "--out", "model.pt2")
    assert (code, err) == (0, "")
    assert "chatter" not in out + caplog.text
    logging.getLogger("torch.onnx").error("heard again")
    assert "heard again" in caplog.text


def test_the_default_is_a_file_of_torch_in_the_run(cli, run):
    code, out, _ = cli("export", run)
    assert code == 0
    assert out.startswith(f"{run / 'model.pt2'}: ")
    (run / "model.pt2").unlink()


def test_mistakes(cli, run, tmp_path):
    def fails(*words):
        code, _, err = cli("export", *words)
        assert (code, err.count("\n"), err[:7]) == (2, 1, "error: "), err
        return err

    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").write_text("")
    assert ".pt2 or .onnx" in fails(run, "--out", "model.h5")
    assert "folder.onnx is a folder" in fails(run, "--out", "folder.onnx")
    assert "cannot write no/such/model.pt2: No such file" in fails(
        run, "--out", "no/such/model.pt2"
    )
    assert "cannot write file/model.pt2: Not a directory" in fails(run, "--out", "file/model.pt2")
    assert "nowhere holds no trained network" in fails("nowhere")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.onnx"]
    shutil.copytree(run, "damaged")
    for text in ("{}", "[]"):
        Path("damaged/model.json").write_text(text)
        assert "damaged/model.json does not describe a network" in fails("damaged")


def test_without_the_packages_of_onnx(cli, run, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnxscript", None)
        code, _, err = cli("export", run, "--out", "model.onnx")
        assert code == 2
        assert 'writing .onnx needs onnxscript: pip install "comatch[onnx]"' in err
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, _ = cli("export", run, "--out", "model.onnx")
    assert code == 0
    assert "not compared with the run's classifier: no onnxruntime here" in out


# ------------------------------------------------------------------------ what is not kept


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_says_something_else_is_not_kept(run, tmp_path, monkeypatch, kind):
    path = tmp_path / f"model.{kind}"
    path.write_text("what was there before")
    monkeypatch.setattr(portable, "soften", lambda p, temperature: p)
    with pytest.raises(UserError, match="not kept: it differs from the run's classifier by"):
        comatch.export(run, path)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["what was there before"]
    monkeypatch.undo()
    comatch.export(run, path)
    assert len(list(tmp_path.iterdir())) == 1
    assert path.stat().st_size > 10_000


def test_a_file_is_asked_before_it_has_its_name(run, tmp_path, monkeypatch):
    compare, seen = portable.compare, []

    def look(*given):
        seen.extend(p.name for p in tmp_path.iterdir())
        return compare(*given)

    monkeypatch.setattr(portable, "compare", look)
    comatch.export(run, tmp_path / "model.pt2")
    assert seen == ["model.pt2.part"]


def test_a_network_that_cannot_be_written_is_one_line(run, tmp_path, monkeypatch):
    def looks_at_the_pixels(images, mean, std):
        return images if images.sum() > 0 else -images

    monkeypatch.setattr(portable, "normalise", looks_at_the_pixels)
    with pytest.raises(UserError, match=r"this network cannot be written as \.pt2: .") as told:
        comatch.export(run, tmp_path / "model.pt2")
    assert "\n" not in str(told.value)
    assert not list(tmp_path.iterdir())


def test_weights_beyond_what_onnx_can_hold(run, tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "LARGEST_ONNX", 100_000)
    with pytest.raises(UserError, match="more than an ONNX file can hold"):
        comatch.export(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------ docs/how-to/export.md


def test_the_page_runs_as_written(cli, run, classifier, tmp_path):
    """Its commands, and then its code without comatch, the first half of it without torch."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run)
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for line in commands.splitlines():
        assert cli(*line.split("#")[0].split()[1:])[0] == 0, line
    photograph(300, 200).save("1.jpg")
    turned = photograph(60, 90, seed=1)
    turned.getexif()[0x0112] = 6  # lying on its side
    turned.save("2.jpg", exif=turned.getexif())

    with_onnx, with_torch = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    show = "print(json.dumps(probabilities.tolist()))\n"
    program = "import sys; sys.modules['comatch'] = sys.modules['torch'] = None\n"
    program += with_onnx + show + "del sys.modules['torch']\n" + with_torch + show
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = classifier.predict(["1.jpg", "2.jpg"])
    lines = done.stdout.splitlines()
    assert lines[0::2] == [str(said.labels)] * 2
    for line in lines[1::2]:
        p = torch.tensor(json.loads(line))
        torch.testing.assert_close(p, said.probabilities, atol=1e-5, rtol=0)
    (run / "model.pt2").unlink()
