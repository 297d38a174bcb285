"""A trained classifier as one file that runs without comatch.

Images go in as they are decoded, uint8 [N, 3, S, S], and class probabilities [N, C] come out:
normalisation and temperature are inside, and how an image becomes S pixels wide travels along. A
`.pt2` file needs torch alone; an `.onnx` file runs in onnxruntime and its like, in any language.

A file gets its name only once it was loaded again and has said what the run's classifier says.
"""

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from comatch.augment.policies import normalise
from comatch.classifier import Classifier, load_classifier
from comatch.config import require
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.evaluation.temperature import soften
from comatch.files import atomic_writer
from comatch.training.run_folder import Run, folder_of

KEY = "comatch"  # under which a file tells its classes and sizes, as JSON
SQUARING = (
    "upright, RGB; the shorter side scaled to `resize` pixels, bilinear, and the middle of the "
    "longer one; of that the middle `image_size` x `image_size`; channels first, 0 to 255"
)
TOLERANCE = 1e-4  # of a probability; rounding alone makes about a millionth
LARGEST_ONNX = 2_130_000_000  # bytes of weights: an ONNX file ends at 2 GiB, all that is in it

Ask = Callable[[Tensor], Tensor]  # images -> probabilities


@dataclass(frozen=True)
class Exported:
    path: Path
    image_size: int
    classes: list[str]
    difference: float | None  # the largest from the run's classifier; none: nothing here can run it


def export(run: str | Path | Run, out: str | Path | None = None) -> Exported:
    """Writes a run's classifier to `out`, a `.pt2` or `.onnx` file, and checks what it says there.

    Without `out` it is `model.pt2` in the run's folder.
    """
    path = Path(out) if out else folder_of(run).path / "model.pt2"
    form = form_of(path)
    classifier = load_classifier(folder_of(run), choose_device("cpu"))
    try:
        with silence(), atomic_writer(path) as file:
            file.write(form.write(trace(classifier), json.dumps(described(classifier))))
            file.flush()
            difference = compare(form.open(Path(file.name)), classifier)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    except Exception as error:  # exporters raise whatever a network leads them to
        raise UserError(
            f"this network cannot be written as {path.suffix}: {reason(error)}"
        ) from error
    return Exported(path, classifier.image_size, classifier.classes, difference)


class Whole(nn.Module):
    """From pixels to probabilities, as `Classifier.predict` goes; the projector stays behind."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        net = classifier.net
        self.encoder, self.classifier = net.encoder, net.classifier
        self.mean, self.std = nn.Buffer(classifier.mean), nn.Buffer(classifier.std)
        self.temperature = classifier.temperature

    def forward(self, images: Tensor) -> Tensor:  # uint8 [N, 3, S, S] -> [N, C]
        x = normalise(images.float(), self.mean, self.std)
        x = x.contiguous(memory_format=torch.channels_last)
        logits = self.classifier(self.encoder(x))
        return soften(F.softmax(logits, dim=1), self.temperature)


def trace(classifier: Classifier) -> ExportedProgram:
    """The network as a list of plain operations, for any number of images."""
    size = classifier.image_size
    two = torch.zeros(2, 3, size, size, dtype=torch.uint8)  # one might be taken for a constant
    with torch.no_grad():
        program = torch.export.export(
            Whole(classifier).eval(), (two,), dynamic_shapes=({0: Dim("N")},)
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names folders of this machine
    return program


def described(classifier: Classifier) -> dict[str, object]:
    return {
        "classes": classifier.classes,
        "image_size": classifier.image_size,
        "resize": classifier.resize,
        "squaring": SQUARING,
    }


def compare(ask: Ask | None, classifier: Classifier) -> float | None:
    """The largest difference between both answers about random images, if a file can be asked."""
    if ask is None:
        return None
    images = random_images(7, classifier.image_size)
    truth = classifier.predict(images).probabilities
    said = torch.cat([ask(images[:1]), ask(images[1:])])  # one alone, and several
    difference = (said - truth).abs().max().item()
    require(
        difference <= TOLERANCE,  # and so not, if it is no number
        f"the exported file was not kept: it differs from the run's classifier by {difference:.0e}",
    )
    return difference


def random_images(count: int, size: int) -> Tensor:  # uint8 [count, 3, size, size]
    """Patches of colour with noise on them: noise alone looks all the same to a network."""
    random = torch.Generator().manual_seed(0)
    patches = torch.rand(count, 3, 4, 4, generator=random)
    noise = torch.rand(count, 3, size, size, generator=random) / 2
    return (F.interpolate(patches, (size, size)) / 2 + noise).mul(255).byte()


class Form(NamedTuple):
    """A kind of file: how it is written, with a note inside, and how it is asked."""

    write: Callable[[ExportedProgram, str], bytes]
    open: Callable[[Path], Ask | None]


def write_pt2(program: ExportedProgram, note: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={KEY: note})
    return file.getvalue()


def open_pt2(path: Path) -> Ask:
    with path.open("rb") as file:
        return torch.no_grad()(torch.export.load(file).module())


def write_onnx(program: ExportedProgram, note: str) -> bytes:
    weights = sum(value.nbytes for value in program.state_dict.values())
    require(
        weights <= LARGEST_ONNX,
        f"{weights / 1e9:.1f} GB of weights are more than an ONNX file can hold: write a .pt2 file",
    )
    written = torch.onnx.export(
        program,
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes=({0: "N"},),
        dynamo=True,
        verbose=False,
    )
    assert written is not None
    written.model.metadata_props[KEY] = note
    return written.model_proto.SerializeToString()


def open_onnx(path: Path) -> Ask | None:
    if not importlib.util.find_spec("onnxruntime"):
        import onnx

        onnx.checker.check_model(path, full_check=True)
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


FORMS = {".pt2": Form(write_pt2, open_pt2), ".onnx": Form(write_onnx, open_onnx)}


def form_of(path: Path) -> Form:
    """The kind of file that its name asks for; what cannot be is told before anything is done."""
    require(not path.is_dir(), f"{path} is a folder: name a file, as in {path / 'model.onnx'}")
    form = FORMS.get(path.suffix.lower())
    if form is None:
        raise UserError(f"{path}: the name decides what is written, so end it in .pt2 or .onnx")
    needed = ("onnx", "onnxscript") if form.write is write_onnx else ()
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    require(
        not missing, f'writing .onnx needs {" and ".join(missing)}: pip install "comatch[onnx]"'
    )
    return form


def reason(error: BaseException) -> str:
    """What exporters explain at length, in a line: what went wrong in the first place."""
    while error.__cause__:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def silence() -> Iterator[None]:
    """Exporters say much about themselves, and nothing that whoever calls them could mend."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
