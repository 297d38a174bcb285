"""A trained classifier that predicts the class of images of any kind."""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from comatch import evaluation, files
from comatch.data.images import ImageError, read_image, square
from comatch.data.streaming import middle
from comatch.errors import UserError
from comatch.evaluation.known_images import KnownImages
from comatch.nets import Network
from comatch.nets.engine import Engine
from comatch.training.run_folder import RunFolder
from comatch.training.trained import load_network

MANY = 200  # images from which converting the network is worth its two seconds

ImageInput = str | Path | Image.Image | np.ndarray


@dataclasses.dataclass(frozen=True)
class Predictions:
    labels: list[str]  # [N] the likeliest class
    probabilities: Tensor  # [N, C]
    classes: list[str]  # [C]
    features: Tensor  # [N, width] that the probabilities were computed from
    fit: Tensor | None  # [N] how well each image fits the classes, 0 to 1; None: not known


class FilePrediction(NamedTuple):
    """What a classifier says of one file."""

    path: Path
    probabilities: Tensor | None  # [C]; None: it cannot be read
    why: str = ""  # it cannot be read
    fit: float | None = None


class TrainedClassifier:
    """A trained network with its classes and preprocessing."""

    def __init__(
        self,
        net: Network,
        description: dict[str, Any],
        device: torch.device,
        known_images: KnownImages | None = None,
    ) -> None:
        self.net = net.to(device).eval()
        self.classes: list[str] = description["classes"]
        self.image_size: int = description["image_size"]
        self.resize: int = description.get("resize", self.image_size)
        self.mean = torch.tensor(description["mean"], device=device)
        self.std = torch.tensor(description["std"], device=device)
        self.temperature: float = description.get("temperature", 1.0)
        self.known_images = known_images
        self.engine: Engine | None = None

    def expect(self, images: int, at_once: int | None = None) -> None:
        """Get ready for so many images. For many on a CPU, the network is converted first.

        It then computes `at_once` images together, and no fewer: few of them arrive at a server.
        """
        if images >= MANY and self.mean.device.type == "cpu" and self.engine is None:
            device = self.mean.device
            outputs, size = Outputs(self.net), self.image_size
            self.engine = Engine(outputs, self.mean, self.std, size, device, at_once)

    def predict(self, images: ImageInput | Sequence[ImageInput] | Tensor) -> Predictions:
        """Classifies one image or several.

        Paths, Pillow images and uint8 arrays [H, W, 3] may have any size; a uint8 tensor
        [N, 3, H, W] must have the classifier's.
        """
        pixels = self._pixels(images)
        if self.engine:
            both = self.engine(pixels)
        else:
            both = evaluation.outputs(self.net, pixels, self.mean, self.std)
        features, p = both.tensor_split([both.shape[1] - len(self.classes)], dim=1)
        p = evaluation.temperature.soften(p, self.temperature)
        fit = self.known_images.fit(features) if self.known_images else None
        labels = [self.classes[i] for i in p.argmax(1).tolist()]
        return Predictions(labels, p, self.classes, features, fit)

    def _pixels(self, images: ImageInput | Sequence[ImageInput] | Tensor) -> Tensor:
        size = self.image_size
        if isinstance(images, Tensor):
            if images.dtype != torch.uint8 or images.shape[1:] != (3, size, size):
                raise UserError(
                    f"a tensor of images must be uint8 [N, 3, {size}, {size}]; "
                    f"this one is {images.dtype} {list(images.shape)}"
                )
            return images
        if isinstance(images, np.ndarray) and images.ndim == 4:
            images = list(images)
        several = [images] if isinstance(images, ImageInput) else images
        with ThreadPoolExecutor() as pool:
            arrays = list(pool.map(lambda image: to_array(image, size, self.resize), several))
        if not arrays:
            raise UserError("no image was given")
        return torch.from_numpy(np.stack(arrays))


class Outputs(nn.Module):
    """From normalised images to features and class probabilities, side by side."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.encoder, self.classifier = net.encoder, net.classifier

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images)
        return torch.cat([features, F.softmax(self.classifier(features), dim=1)], dim=1)


def to_array(image: ImageInput, size: int, resize: int) -> np.ndarray:  # [3, size, size] uint8
    """The shorter side becomes `resize` pixels, and the middle `size` of them are seen."""
    if isinstance(image, str | Path):
        try:
            return middle(read_image(Path(image), resize), size)
        except ImageError as error:
            raise UserError(f"{image} cannot be read: {error}") from None
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    return middle(square(image, resize), size)


def load_classifier(folder: RunFolder, device: torch.device) -> TrainedClassifier:
    """The classifier of a run folder of any version. Nothing in the folder is executed."""
    net, stored = load_network(folder), folder.read_known_images()
    known = KnownImages.of(stored) if stored else None
    with files.expecting(folder.model):
        return TrainedClassifier(net, folder.description(), device, known)


def predict_files(
    classifier: TrainedClassifier, paths: Sequence[Path], chunk: int = 256
) -> Iterator[FilePrediction]:
    """Classify files in chunks; one that cannot be read has no probabilities."""

    def read(path: Path) -> np.ndarray | ImageError:
        try:
            return middle(read_image(path, classifier.resize), classifier.image_size)
        except ImageError as error:
            return error

    classifier.expect(len(paths))
    with ThreadPoolExecutor() as pool:
        for begin in range(0, len(paths), chunk):
            some = paths[begin : begin + chunk]
            results = list(pool.map(read, some))
            readable = [result for result in results if isinstance(result, np.ndarray)]
            rows: Iterator[tuple[Tensor, float | None]] = iter(())
            if readable:
                found = classifier.predict(torch.from_numpy(np.stack(readable)))
                fits = [None] * len(readable) if found.fit is None else found.fit.tolist()
                rows = zip(found.probabilities, fits, strict=True)
            for path, result in zip(some, results, strict=True):
                if isinstance(result, np.ndarray):
                    p, fit = next(rows)
                    yield FilePrediction(path, p, fit=fit)
                else:
                    yield FilePrediction(path, None, str(result))
