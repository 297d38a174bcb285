"""An exported file gives the same probabilities without comatch, or it is not kept."""

import json
import logging
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import comatch
from comatch.classifier import TrainedClassifier
from comatch.commands import export as export_module
from comatch.errors import UserError
from comatch.nets import Network, build_encoder
from comatch.planning import load_dataset
from comatch.training.run_folder import RunFolder
from helpers import TINY, photograph

pytestmark = pytest.mark.slow


def require_onnx():
    """Skip the test where the packages of .onnx files are not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)


@pytest.fixture(scope="module", params=["pt2", "onnx"])
def kind(request):
    if request.param == "onnx":
        require_onnx()
    return request.param


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on digits with a temperature, and a crop that is smaller than the resized image."""
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
    recipe = RunFolder(run).recipe()
    return load_dataset(recipe.reading, Path("data")).test.images


@pytest.fixture(scope="module")
def exported(kind, run, tmp_path_factory):
    return comatch.export(run, tmp_path_factory.mktemp("exported") / f"model.{kind}")


def predict(path, images):
    """Probabilities of an exported file, without comatch."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        (image,), (p,) = session.get_inputs(), session.get_outputs()
        assert (image.name, image.shape, p.name) == ("images", ["N", 3, 8, 8], "probabilities")
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    with torch.no_grad():
        return torch.export.load(path).module()(images)


@pytest.mark.parametrize("count", [1, 7, 359])
def test_the_probabilities_are_those_of_the_classifier(exported, classifier, digits, count):
    truth = classifier.predict(digits[:count]).probabilities
    torch.testing.assert_close(predict(exported.path, digits[:count]), truth, atol=1e-5, rtol=0)
    assert exported.difference < 1e-5


def test_temperature_and_normalisation_are_part_of_the_file(exported, run, digits):
    p = predict(exported.path, digits)
    for change in ({"temperature": 1.0}, {"mean": [0.5] * 3}, {"std": [0.5] * 3}):
        described = RunFolder(run).description() | change
        other = TrainedClassifier(comatch.load(run, "cpu").net, described, torch.device("cpu"))
        assert (other.predict(digits).probabilities - p).abs().max() > 0.01, change


def test_one_file_has_the_classes_and_sizes(exported):
    assert list(exported.path.parent.iterdir()) == [exported.path]
    if exported.path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(exported.path)
        metadata = session.get_modelmeta().custom_metadata_map
    else:
        metadata = {"comatch": ""}
        torch.export.load(exported.path, extra_files=metadata)
    assert json.loads(metadata["comatch"]) == {
        "classes": [str(digit) for digit in range(10)],
        "image_size": 8,
        "resize": 12,
        "preprocessing": export_module.PREPROCESSING,
    }


def test_the_file_contains_no_path_of_this_machine(exported):
    content = exported.path.read_bytes()
    assert b"encoder" in content  # the file is not compressed, so names can be found
    for place in (Path(comatch.__file__).parent, Path(torch.__file__).parent, exported.path.parent):
        assert str(place).encode() not in content


@pytest.mark.parametrize("net", ["wrn-10-1", "test_resnet", "test_vit"])
def test_networks(net, kind, tmp_path):
    """Our wide ResNet and two nets of timm; the projection head is not exported."""
    torch.manual_seed(0)
    network = Network(build_encoder(net, 32, norm_momentum=1.0), 5, embedding_dim=16)
    network(torch.randn(64, 3, 32, 32))  # gives batch norm its statistics
    about = {"net": net, "stem": "auto", "image_size": 32, "embedding_dim": 16}
    about |= {"classes": list("abcde"), "mean": [0.5] * 3, "std": [0.25] * 3}
    RunFolder(tmp_path).write_model(network, about)
    done = comatch.export(tmp_path, tmp_path / f"model.{kind}")
    assert done.difference < 1e-5
    assert b"projector" not in done.path.read_bytes()
    p = comatch.load(tmp_path, "cpu").predict(export_module.random_images(7, 32)).probabilities
    assert p.std(0).max() > 1e-3  # otherwise the comparison would mean nothing


# ------------------------------------------------------------------------------- the command line


def test_the_command_prints_one_line(run, tmp_path, kind):
    """In a process of its own, because exporters write to the terminal in several ways."""
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


def test_the_output_of_exporters_is_hidden(cli, run, monkeypatch, caplog):
    """Their real output depends on the versions of torch and onnxscript."""
    trace = export_module.trace

    def chatty(classifier):
        print("chatter")
        warnings.warn("chatter", FutureWarning, stacklevel=1)
        logging.getLogger("torch.onnx").error("chatter")
        return trace(classifier)

    monkeypatch.setattr(export_module, "trace", chatty)
    code, out, err = cli("export", run, "--out", "model.pt2")
    assert (code, err) == (0, "")
    assert "chatter" not in out + caplog.text
    logging.getLogger("torch.onnx").error("visible again")
    assert "visible again" in caplog.text


def test_the_default_is_a_pt2_file_in_the_run_folder(cli, run):
    code, out, _ = cli("export", run)
    assert code == 0
    assert out.startswith(f"{run / 'model.pt2'}: ")
    (run / "model.pt2").unlink()


def test_mistakes_are_one_line(cli, run, tmp_path):
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
    assert "there is no run folder nowhere" in fails("nowhere")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.onnx"]
    shutil.copytree(run, "damaged")
    for text in ("{}", "[]"):
        Path("damaged/model.json").write_text(text)
        assert "damaged/model.json" in fails("damaged")


def test_without_the_packages_of_onnx(cli, run, tmp_path, monkeypatch):
    require_onnx()
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


# ------------------------------------------------------------------------ failures


def test_a_file_with_other_probabilities_is_not_kept(run, tmp_path, monkeypatch, kind):
    path = tmp_path / f"model.{kind}"
    path.write_text("what was there before")
    monkeypatch.setattr(export_module, "soften", lambda p, temperature: p)
    with pytest.raises(UserError, match="not kept: it differs from the run's classifier by"):
        comatch.export(run, path)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["what was there before"]
    monkeypatch.undo()
    comatch.export(run, path)
    assert len(list(tmp_path.iterdir())) == 1
    assert path.stat().st_size > 10_000


def test_a_file_is_checked_before_it_has_its_name(run, tmp_path, monkeypatch):
    compare, names = export_module.compare, []

    def note_files(*args):
        names.extend(p.name for p in tmp_path.iterdir())
        return compare(*args)

    monkeypatch.setattr(export_module, "compare", note_files)
    comatch.export(run, tmp_path / "model.pt2")
    assert names == ["model.pt2.part"]


def test_a_network_that_cannot_be_exported_is_one_line(run, tmp_path, monkeypatch):
    def depends_on_the_data(images, mean, std):
        return images if images.sum() > 0 else -images

    monkeypatch.setattr(export_module, "normalise", depends_on_the_data)
    with pytest.raises(UserError, match=r"this network cannot be written as \.pt2: .") as error:
        comatch.export(run, tmp_path / "model.pt2")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_too_many_weights_for_an_onnx_file(run, tmp_path, monkeypatch):
    require_onnx()
    monkeypatch.setattr(export_module, "LARGEST_ONNX", 100_000)
    with pytest.raises(UserError, match="more than an ONNX file can hold"):
        comatch.export(run, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------ docs/how-to/export.md


def test_the_page_runs_as_written(cli, run, classifier, tmp_path):
    """Its commands, then its code without comatch, and the first half of that without torch."""
    require_onnx()
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run)
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    for line in commands.splitlines():
        assert cli(*line.split("#")[0].split()[1:])[0] == 0, line
    photograph(300, 200).save("1.jpg")
    turned = photograph(60, 90, seed=1)
    turned.getexif()[0x0112] = 6  # rotated by 90 degrees
    turned.save("2.jpg", exif=turned.getexif())

    with_onnx, with_torch = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    show = "print(json.dumps(probabilities.tolist()))\n"
    program = "import sys; sys.modules['comatch'] = sys.modules['torch'] = None\n"
    program += with_onnx + show + "del sys.modules['torch']\n" + with_torch + show
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    truth = classifier.predict(["1.jpg", "2.jpg"])
    lines = done.stdout.splitlines()
    assert lines[0::2] == [str(truth.labels)] * 2
    for line in lines[1::2]:
        p = torch.tensor(json.loads(line))
        torch.testing.assert_close(p, truth.probabilities, atol=1e-5, rtol=0)
    (run / "model.pt2").unlink()
