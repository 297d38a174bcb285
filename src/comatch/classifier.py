"""A trained classifier that predicts the class of images of any kind."""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from comatch import evaluation
from comatch.data.images import ImageError, read_image, square
from comatch.data.streaming import middle
from comatch.errors import UserError
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


class Classifier:
    """A trained network with its classes and preprocessing."""

    def __init__(self, net: Network, description: dict[str, Any], device: torch.device) -> None:
        self.net = net.to(device).eval()
        self.classes: list[str] = description["classes"]
        self.image_size: int = description["image_size"]
        self.resize: int = description.get("resize", self.image_size)
        self.mean = torch.tensor(description["mean"], device=device)
        self.std = torch.tensor(description["std"], device=device)
        self.temperature: float = description.get("temperature", 1.0)
        self.engine: Engine | None = None

    def expect(self, images: int) -> None:
        """Get ready for so many images. For many on a CPU, the network is converted first."""
        if images >= MANY and self.mean.device.type == "cpu" and self.engine is None:
            probabilities = Probabilities(self.net)
            device = self.mean.device
            self.engine = Engine(probabilities, self.mean, self.std, self.image_size, device)

    def predict(self, images: ImageInput | Sequence[ImageInput] | Tensor) -> Predictions:
        """Classifies one image or several.

        Paths, Pillow images and uint8 arrays [H, W, 3] may have any size; a uint8 tensor
        [N, 3, H, W] must have the classifier's.
        """
        pixels = self._pixels(images)
        if self.engine:
            p = self.engine(pixels)
        else:
            p = evaluation.probabilities(self.net, pixels, self.mean, self.std)
        p = evaluation.temperature.soften(p, self.temperature)
        return Predictions([self.classes[i] for i in p.argmax(1).tolist()], p, self.classes)

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


class Probabilities(nn.Module):
    """From normalised images to class probabilities."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.encoder, self.classifier = net.encoder, net.classifier

    def forward(self, images: Tensor) -> Tensor:
        return F.softmax(self.classifier(self.encoder(images)), dim=1)


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


def load_classifier(folder: RunFolder, device: torch.device) -> Classifier:
    """The classifier of a run folder of any version. Nothing in the folder is executed."""
    return Classifier(load_network(folder), folder.description(), device)


def predict_files(
    classifier: Classifier, paths: Sequence[Path], chunk: int = 256
) -> Iterator[tuple[Path, Tensor | None, str]]:
    """Each file with its class probabilities [C], or with None and why it cannot be read."""

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
            rows: Iterator[Tensor] = iter(())
            if readable:
                pixels = torch.from_numpy(np.stack(readable))
                rows = iter(classifier.predict(pixels).probabilities)
            for path, result in zip(some, results, strict=True):
                if isinstance(result, np.ndarray):
                    yield path, next(rows), ""
                else:
                    yield path, None, str(result)
