"""A trained classifier as one file that runs without comatch.

Input: decoded images, uint8 [N, 3, S, S]. Output: class probabilities [N, C]. Normalisation and
temperature are part of the graph; the metadata describe the resizing. A `.pt2` file needs torch
alone; an `.onnx` file runs in onnxruntime and other runtimes, in many languages.

A file is kept only if it gives the same probabilities as the run's classifier after loading.
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
from comatch.classifier import TrainedClassifier, load_classifier
from comatch.config import require
from comatch.device import choose_device
from comatch.errors import UserError
from comatch.evaluation.temperature import soften
from comatch.files import atomic_writer
from comatch.training.run_folder import Run, folder_of

KEY = "comatch"  # of the metadata: classes and sizes, as JSON
PREPROCESSING = (
    "upright, RGB; the shorter side resized to `resize` pixels, bilinear; centre crop of "
    "`image_size` x `image_size`; channels first, 0 to 255"
)
TOLERANCE = 1e-4  # of a probability; rounding alone gives about 1e-6
LARGEST_ONNX = 2_130_000_000  # bytes of weights: a whole ONNX file has at most 2 GiB

Predict = Callable[[Tensor], Tensor]  # images -> probabilities


@dataclass(frozen=True)
class Exported:
    path: Path
    image_size: int
    classes: list[str]
    difference: float | None  # largest from the run's classifier; None: no runtime installed


def export(run: str | Path | Run, out: str | Path | None = None) -> Exported:
    """Write a run's classifier to a `.pt2` or `.onnx` file, and check its predictions.

    `out` is by default `model.pt2` in the run's folder.
    """
    path = Path(out) if out else folder_of(run).path / "model.pt2"
    form = format_of(path)
    classifier = load_classifier(folder_of(run), choose_device("cpu"))
    try:
        with silent_exporters(), atomic_writer(path) as file:
            file.write(form.write(trace(classifier), json.dumps(metadata(classifier))))
            file.flush()
            difference = compare(form.load(Path(file.name)), classifier)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    except Exception as error:  # exporters raise all kinds of errors
        raise UserError(
            f"this network cannot be written as {path.suffix}: {reason(error)}"
        ) from error
    return Exported(path, classifier.image_size, classifier.classes, difference)


class Exportable(nn.Module):
    """From pixels to probabilities, as in `TrainedClassifier.predict`, without the projection."""

    def __init__(self, classifier: TrainedClassifier) -> None:
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


def trace(classifier: TrainedClassifier) -> ExportedProgram:
    """The graph of the network, for any number of images."""
    size = classifier.image_size
    two = torch.zeros(2, 3, size, size, dtype=torch.uint8)  # a batch of 1 would be a constant
    with torch.no_grad():
        program = torch.export.export(
            Exportable(classifier).eval(), (two,), dynamic_shapes=({0: Dim("N")},)
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it contains paths of this machine
    return program


def metadata(classifier: TrainedClassifier) -> dict[str, object]:
    return {
        "classes": classifier.classes,
        "image_size": classifier.image_size,
        "resize": classifier.resize,
        "preprocessing": PREPROCESSING,
    }


def compare(predict: Predict | None, classifier: TrainedClassifier) -> float | None:
    """The largest difference of a probability on random images, if a runtime is installed."""
    if predict is None:
        return None
    images = random_images(7, classifier.image_size)
    truth = classifier.predict(images).probabilities
    exported = torch.cat([predict(images[:1]), predict(images[1:])])  # batches of 1 and 6
    difference = (exported - truth).abs().max().item()
    require(
        difference <= TOLERANCE,  # false for NaN too
        f"the exported file was not kept: it differs from the run's classifier by {difference:.0e}",
    )
    return difference


def random_images(count: int, size: int) -> Tensor:  # uint8 [count, 3, size, size]
    """Patches of colour with noise: a network's output on noise alone hardly varies."""
    random = torch.Generator().manual_seed(0)
    patches = torch.rand(count, 3, 4, 4, generator=random)
    noise = torch.rand(count, 3, size, size, generator=random) / 2
    return (F.interpolate(patches, (size, size)) / 2 + noise).mul(255).byte()


class Format(NamedTuple):
    """How a kind of file is written, with metadata in it, and how it is loaded."""

    write: Callable[[ExportedProgram, str], bytes]
    load: Callable[[Path], Predict | None]


def write_pt2(program: ExportedProgram, metadata: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={KEY: metadata})
    return file.getvalue()


def load_pt2(path: Path) -> Predict:
    with path.open("rb") as file:
        return torch.no_grad()(torch.export.load(file).module())


def write_onnx(program: ExportedProgram, metadata: str) -> bytes:
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
    written.model.metadata_props[KEY] = metadata
    return written.model_proto.SerializeToString()


def load_onnx(path: Path) -> Predict | None:
    if not importlib.util.find_spec("onnxruntime"):
        import onnx

        onnx.checker.check_model(path, full_check=True)
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


FORMATS = {".pt2": Format(write_pt2, load_pt2), ".onnx": Format(write_onnx, load_onnx)}


def format_of(path: Path) -> Format:
    """The format for the file's suffix; an error if it cannot be written here."""
    require(not path.is_dir(), f"{path} is a folder: name a file, as in {path / 'model.onnx'}")
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise UserError(f"{path}: the suffix decides the format, so end the name in .pt2 or .onnx")
    needed = ("onnx", "onnxscript") if form.write is write_onnx else ()
    missing = [name for name in needed if not importlib.util.find_spec(name)]
    require(
        not missing, f'writing .onnx needs {" and ".join(missing)}: pip install "comatch[onnx]"'
    )
    return form


def reason(error: BaseException) -> str:
    """The first line of the error that caused the others."""
    while error.__cause__:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def silent_exporters() -> Iterator[None]:
    """Without the output, log and warnings of exporters, which are about their own code."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
